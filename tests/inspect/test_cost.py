import timm
import torch

from laplacianformer.inspect._cost import cost


def test_columns_of_one_attention_layer_match_a_count_by_hand():
    """One block on a 16 x 16 grid with 2 heads of 32: N = 256, m = 49, four such blocks would cost four times it."""
    shape = {"depths": (1,), "embed_dims": (64,), "num_heads": (2,), "mlp_ratios": (4,), "num_classes": 0}
    counted = cost("laplacianformer_tiny", 64, **shape)
    tokens, landmarks, dim, heads = 256, 49, 64, 2
    width = dim // heads

    kernels = heads * tokens * landmarks * width
    solver_steps = 6
    linear = tokens * (3 * dim * dim + dim * dim + 8 * dim * dim)
    convolutions = tokens * (dim * 3 * 49 + 9 * dim)
    pooling = 7 * 16 * 16 * dim + 7 * 16 * 7 * dim
    solve = heads * landmarks * landmarks * width
    assert counted.solver_macs == heads * 2 * solver_steps * landmarks**3
    assert counted.l1_operations == 3 * (2 * kernels + heads * landmarks * landmarks * width)
    assert counted.macs == linear + convolutions + pooling + solve + 2 * kernels


def test_cost_scales_linearly_with_pixels():
    small, large = (cost("laplacianformer_tiny", size) for size in (448, 896))
    for column in ("macs", "l1_operations", "activations"):
        assert getattr(large, column) <= 4.05 * getattr(small, column)
    assert large.solver_macs == small.solver_macs


def test_counts_do_not_depend_on_the_device_of_the_weights():
    model = timm.create_model("laplacianformer_nano")
    assert cost("laplacianformer_nano", 32).parameters == sum(p.numel() for p in model.parameters())
    assert cost("laplacianformer_nano", 32, attention="softmax").l1_operations == 0
    assert torch.get_default_device().type == "cpu"
