"""timm's contract, over all sizes: forward, heads, configurations, feature maps."""

import copy
import pickle

import pytest
import timm
import torch

from laplacianformer.attention import GridAttention, LaplacianAttention
from tests.model.helpers import NAMES, create, gradients, images


@pytest.fixture(scope="module", params=NAMES)
def model(request):
    """One model of each size, in evaluation mode, shared: building the large ones takes longer than running them."""
    return create(request.param)


def test_timm_lists_all_sizes():
    assert timm.list_models("laplacianformer_*", module="sizes") == sorted(NAMES)
    assert set(timm.list_models("laplacianformer_*")) == set(NAMES)


def test_forward_and_backward_are_finite_and_reach_every_parameter(model):
    model.train()
    logits = model(images(64))
    assert logits.shape == (2, 1000)
    assert logits.isfinite().all()
    logits.logsumexp(1).sum().backward()
    for parameter, gradient in gradients(model).items():
        assert gradient is not None, parameter
        assert gradient.isfinite().all(), parameter
        assert gradient.count_nonzero() > 0, parameter
    model.zero_grad()
    model.eval()


def test_default_cfg_matches_the_model(model, request):
    cfg = model.default_cfg
    tensors = model.state_dict()
    assert cfg["architecture"] in request.node.name
    assert tensors[cfg["classifier"] + ".weight"].shape == (cfg["num_classes"], model.num_features)
    assert model.get_classifier() is model.get_submodule(cfg["classifier"])
    assert tensors[cfg["first_conv"] + ".weight"].shape[1] == cfg["input_size"][0]
    assert not cfg["fixed_input_size"]
    # The reduction, tried at a small image.
    _, height, width = cfg["input_size"]
    stride = model.feature_info[-1]["reduction"]
    assert cfg["pool_size"] == (height // stride, width // stride)
    assert model.forward_features(images(2 * stride)).shape == (2, model.num_features, 2, 2)


def test_forward_is_features_then_head(model):
    x = images(48)
    with torch.no_grad():
        features = model.forward_features(x)
        assert torch.equal(model.forward_head(features), model(x))
        pooled = model.forward_head(features, pre_logits=True)
        assert pooled.shape == (2, model.num_features) == (2, model.head_hidden_size)
        assert torch.equal(model.get_classifier()(pooled), model(x))
        torch.testing.assert_close(pooled, features.mean((2, 3)))


def test_heads_can_be_left_out_and_replaced(model):
    x = images(48)
    with torch.no_grad():
        features = model.forward_features(x)
        pooled = model.forward_head(features, pre_logits=True)

        model.reset_classifier(0)
        assert model.num_classes == 0
        assert torch.equal(model(x), pooled)

        model.reset_classifier(0, "")
        assert torch.equal(model(x), features)

        model.reset_classifier(7, "avg")
        assert model.num_classes == 7
        assert model(x).shape == (2, 7)
        assert torch.equal(model.forward_features(x), features)
        model.reset_classifier(1000)


@pytest.mark.parametrize("arguments", [{"num_classes": 0}, {"num_classes": 0, "global_pool": ""}, {"num_classes": 5}])
def test_heads_by_argument_equal_heads_by_reset(arguments):
    model, x = create(), images()
    built = create(**arguments)
    model.reset_classifier(arguments["num_classes"], arguments.get("global_pool"))
    model.load_state_dict(built.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(model(x), built(x))


def test_a_new_head_takes_dtype_and_initial_scale_of_the_model():
    model = create().double()
    model.reset_classifier(500)
    assert model.head.weight.dtype == torch.float64
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.head.bias.count_nonzero() == 0


@pytest.mark.parametrize("channels", [1, 4])
def test_other_numbers_of_input_channels(channels):
    model = create(in_chans=channels)
    assert model(images(32, channels=channels)).shape == (2, 1000)
    assert model.state_dict()[model.default_cfg["first_conv"] + ".weight"].shape[1] == channels


def test_feature_maps_are_as_feature_info_says(model):
    height, width = 64, 96
    maps = model.forward_intermediates(images(height, width), intermediates_only=True)
    nano = model.default_cfg["architecture"].endswith("nano")
    assert [info["reduction"] for info in model.feature_info] == ([2, 4, 8, 16] if nano else [4, 8, 16, 32])
    for map_, info in zip(maps, model.feature_info, strict=True):
        stride = info["reduction"]
        assert map_.shape == (2, info["num_chs"], height // stride, width // stride)


@pytest.mark.parametrize(
    ("indices", "stages"),
    [(None, [0, 1, 2, 3]), (2, [2, 3]), ([0, 2], [0, 2]), ((1,), [1]), ([-1], [3]), ([-3, 3], [1, 3])],
)
@pytest.mark.parametrize("stop_early", [False, True])
def test_forward_intermediates_returns_the_requested_stages(indices, stages, stop_early):
    model, x = create(), images()
    expected, y = [], x
    for stage in model.stages:
        y = stage(y)
        expected.append(y)
    maps = model.forward_intermediates(x, indices=indices, stop_early=stop_early, intermediates_only=True)
    assert len(maps) == len(stages)
    for map_, stage in zip(maps, stages, strict=True):
        assert torch.equal(map_, expected[stage])

    final, again = model.forward_intermediates(x, indices=indices)
    assert torch.equal(final, model.forward_features(x))
    assert all(torch.equal(a, b) for a, b in zip(maps, again, strict=True))


def test_forward_intermediates_normalises_the_last_map_on_request():
    model, x = create(), images()
    model.norm.weight.data.uniform_(0.5, 2)
    final, maps = model.forward_intermediates(x, norm=True)
    assert torch.equal(maps[-1], final)
    plain = model.forward_intermediates(x, norm=False, intermediates_only=True)
    assert torch.equal(maps[0], plain[0])
    assert not torch.allclose(maps[-1], plain[-1])


def test_stop_early_runs_no_later_stage():
    model = create()
    calls = []
    for index, stage in enumerate(model.stages):
        stage.register_forward_hook(lambda *_, index=index: calls.append(index))
    (early,) = model.forward_intermediates(images(), indices=[1], stop_early=True, intermediates_only=True)
    assert calls == [0, 1]
    final, (map_,) = model.forward_intermediates(images(), indices=[1], stop_early=True)
    assert torch.equal(final, early)
    assert torch.equal(map_, early)


@pytest.mark.parametrize("indices", [(0, 1, 2, 3), (1, 3), (0,), (2,)])
def test_features_only_equals_forward_intermediates_and_drops_the_rest(indices):
    model, x = create(), images()
    features = create(features_only=True, out_indices=indices)
    expected = model.forward_intermediates(x, indices=indices, intermediates_only=True)
    assert all(torch.equal(a, b) for a, b in zip(features(x), expected, strict=True))
    assert features.feature_info.channels() == [map_.shape[1] for map_ in expected]
    kept = {name.split(".")[2] for name, _ in features.named_parameters() if ".stages." in f".{name}"}
    assert kept == {str(stage) for stage in range(max(indices) + 1)}
    assert not any("head" in name for name, _ in features.named_parameters())


def test_intermediates_in_another_layout_are_refused():
    with pytest.raises(ValueError, match="NCHW"):
        create().forward_intermediates(images(), output_fmt="NLC")


def test_stochastic_depth_grows_linearly_and_acts_in_training_only():
    depths = (2, 3, 4, 1)
    model = create(depths=depths, drop_path_rate=0.3)
    blocks = [block for stage in model.stages for block in stage.blocks]
    for drop in ("drop_path1", "drop_path2"):
        rates = [getattr(getattr(block, drop), "drop_prob", 0.0) for block in blocks]
        assert rates == pytest.approx([0.3 * index / 9 for index in range(10)])

    x = images(32, batch=4)
    assert torch.equal(model(x), model(x))
    assert torch.equal(model(x), create(depths=depths)(x))
    model.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("option", ["drop_rate", "proj_drop_rate"])
def test_dropout_acts_in_training_only(option):
    model, x = create(**{option: 0.5}), images(32)
    assert torch.equal(model(x), create()(x))
    model.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_compute_the_same_and_share_nothing(copied):
    model, x = create(), images(32)
    other = copied(model)
    expected = model(x)
    assert torch.equal(other(x), expected)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.zero_()
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_model_moves_to_other_dtypes(dtype):
    model, x = create(), images(64)
    expected = model(x).double()
    out = model.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    # 2^-8 and 2^-11 are the roundings of one number; the logits are sums of many.
    tolerance = {torch.float64: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    assert (out.double() - expected).norm() / expected.norm() < tolerance


def test_channels_last_images_and_weights_give_the_same_result():
    model, x = create(), images()
    expected = model(x)
    last = torch.channels_last
    torch.testing.assert_close(model(x.to(memory_format=last)), expected)
    torch.testing.assert_close(model.to(memory_format=last)(x.to(memory_format=last)), expected)


@pytest.mark.parametrize("stage", range(4))
def test_convolutions_write_tokens_in_the_order_in_which_they_are_read(stage):
    model, seen = create(), []
    convolution = model.stages[stage].embedding.proj
    convolution.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    model(images())
    ((given, found),) = seen
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(convolution(given.contiguous()), found)


def test_models_build_without_memory_on_the_meta_device():
    with torch.device("meta"):
        model = timm.create_model("laplacianformer_tiny", drop_path_rate=0.2)
        assert model(torch.empty(2, 3, 64, 64)).shape == (2, 1000)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_softmax_attention_shares_everything_else():
    laplacian, softmax = create(), create(attention="softmax")
    assert {name: p.shape for name, p in laplacian.named_parameters()} == {
        name: p.shape for name, p in softmax.named_parameters()
    }
    with pytest.warns(UserWarning, match="the state does not say with which settings"):
        softmax.load_state_dict(dict(laplacian.named_parameters()))
    assert not torch.allclose(laplacian(images()), softmax(images()))


def test_attention_arguments_reach_every_layer():
    model = create(attention_args={"grid": 3, "gain": "learned"})
    layers = [module for module in model.modules() if isinstance(module, LaplacianAttention)]
    assert [layer.grid for layer in layers] == [(3, 3)] * 7
    assert sum(name.endswith("attention.gain") for name, _ in model.named_parameters()) == 7


def test_attention_may_be_a_custom_class():
    class Local(GridAttention):
        def mix(self, q_bhnd, k_bhnd, v_bhnd, size):
            return v_bhnd

    model = create(attention=Local)
    assert all(isinstance(block.attention, Local) for stage in model.stages for block in stage.blocks)
    assert model(images(32)).shape == (2, 1000)
