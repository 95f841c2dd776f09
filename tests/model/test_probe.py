"""The probe: nothing but its token mixer mixes tokens, and the controls do what their names say."""

import pytest
import timm
import torch
from torch import nn

from laplacianformer import LaplacianAttention, load_weights, save_weights
from laplacianformer.attention._controls import CONTROLS

from .helpers import create, images

SMALL = {"depth": 1, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


def probe(attention: str, seed: int = 0, **arguments) -> nn.Module:
    model = create("attention_probe", seed=seed, attention=attention, attention_args=arguments, **SMALL)
    return model.double()


def reached(model: nn.Module) -> torch.Tensor:
    """Which tokens the feature of the first token depends on, (8, 8)."""
    x = images(32).double().requires_grad_()
    (gradient,) = torch.autograd.grad(model.forward_features(x)[0, :, 0, 0].square().sum(), x)
    return gradient[0].abs().sum(0).unflatten(0, (8, 4)).unflatten(2, (8, 4)).sum((1, 3)) > 0


def test_tokens_meet_in_the_token_mixer_alone() -> None:
    assert reached(probe("laplacian", grid=4)).all()
    assert reached(probe("softmax")).all()
    alone = reached(probe("no-mixing"))
    assert alone[0, 0]
    assert alone.sum() == 1


def test_convolutions_are_those_of_the_patches_only() -> None:
    convolutions = [module for module in probe("laplacian").modules() if isinstance(module, nn.Conv2d)]
    assert [(found.kernel_size, found.stride) for found in convolutions] == [((4, 4), (4, 4))]


def test_the_mean_over_queries_is_the_same_for_all_of_them_and_that_of_the_attention() -> None:
    both = [kind(16, 2, grid=3).double().eval() for kind in (CONTROLS["mean-over-queries"], LaplacianAttention)]
    q, k, v = (torch.randn(2, 2, 30, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(30) < torch.tensor([[30], [17]])
    for masked in ((), (mask,)):
        values = v if not masked else v.masked_fill(~mask[:, None, :, None], 0)
        mean, attention = (layer.mix(q, k, values, (6, 5), *masked) for layer in both)
        assert (mean == mean[:, :, :1]).all()
        counted = attention[1, :, :17] if masked else attention[1]
        torch.testing.assert_close(mean[1, :, 0], counted.mean(1))
        assert (attention[:, :, 0] - attention[:, :, 1]).abs().max() > 1e-3


def test_positions_are_learned_and_other_sizes_refused() -> None:
    model = probe("no-mixing")
    same = images(4).double()[:1].repeat(1, 1, 8, 8)
    features = model.forward_features(same)
    assert (features[..., 0, 0] - features[..., 3, 5]).abs().max() > 0
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    with pytest.raises(ValueError, match="expected images of 32 x 32 pixels, got 28 x 28"):
        model(images(28).double())
    with pytest.raises(ValueError, match="img_size must be a multiple of patch_size=4, got 30"):
        create("attention_probe", img_size=30)


def test_its_weights_are_read_back(tmp_path) -> None:
    model = probe("mean-over-queries", grid=4).float()
    save_weights(tmp_path / "probe.safetensors", model, classes=["a", "b", "c"], metadata={})
    x = images(32)
    with torch.no_grad():
        assert torch.equal(load_weights(tmp_path / "probe.safetensors").model(x), model(x))
    assert "attention_probe" in timm.list_models()
