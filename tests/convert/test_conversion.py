"""Exchanged layers: what stays, the contract with timm, the start that softmax leaves free, what is refused."""

import copy
from typing import Any

import pytest
import timm
import torch
from timm.models._features import FeatureGetterNet
from torch import nn

from laplacianformer import LaplacianAttention, SoftmaxAttention
from laplacianformer._util.errors import InputError
from laplacianformer.convert._calibration import calibrate, fit_reduced
from laplacianformer.convert._run import start_layers
from laplacianformer.inspect import compare_attention
from laplacianformer.inspect._matching import relative_error, watch
from laplacianformer.model._conversion import Conversion, exchange, softmax_layers, take_over
from tests.convert.helpers import FAMILIES, SIDE, images, teacher

OPTIONS = {"grid": 3, "gain": "learned"}


def converted(model: Any, options: dict[str, Any] | None = None, layers: int | None = None) -> Any:
    """A twin of a model with new layers and its weights."""
    twin = copy.deepcopy(model)
    names = tuple(softmax_layers(model))[:layers]
    made = exchange(twin, Conversion("laplacian", OPTIONS if options is None else options, names))
    start_layers(model, made, images(4))
    return twin.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_only_attention_changes_and_timm_finds_its_contract(family: str) -> None:
    model = teacher(family)
    twin, x = converted(model), images()
    names = tuple(softmax_layers(model))
    assert len(names) == 2
    assert all(type(twin.get_submodule(name)) is LaplacianAttention for name in names)
    state = twin.state_dict()
    for key, value in model.state_dict().items():
        if not key.startswith(names):
            assert torch.equal(state[key], value), key
    assert type(twin) is type(model)
    assert twin.forward_features(x).shape == model.forward_features(x).shape
    final, maps = twin.forward_intermediates(x)
    torch.testing.assert_close(twin.forward_head(final), twin(x))
    features = FeatureGetterNet(converted(model), out_indices=[0, 1])(x)
    for found, expected in zip(features, maps, strict=True):
        torch.testing.assert_close(found, expected)
    twin.reset_classifier(3)
    assert twin(x).shape == (2, 3)


def test_layers_that_are_not_chosen_stay_softmax() -> None:
    model = teacher()
    twin = converted(model, layers=1)
    first, second = softmax_layers(model)
    assert twin.conversion.layers == (first,)
    assert type(twin.get_submodule(second)) is type(model.get_submodule(second))


def test_every_image_size_is_cut_into_its_own_grid() -> None:
    """Also one that is not square, and in a copy: the layers are told the grid of the last image of their own model."""
    model = teacher(dynamic_img_size=True)
    twin = converted(model)
    other, wide = copy.deepcopy(twin), images(1, (2 * SIDE, SIDE))
    twin(images())
    sizes: list[Any] = []
    layer = other.blocks[0].attn
    layer.register_forward_pre_hook(lambda module, inputs: sizes.append(inputs[1]))
    out = other(wide)
    assert sizes == [(8, 4)]
    torch.testing.assert_close(out, twin(wide))
    x = torch.randn(1, 33, 16)
    torch.testing.assert_close(layer(x), layer(x, (8, 4)))


def test_a_converted_model_takes_no_mask() -> None:
    twin = converted(teacher())
    with pytest.raises(ValueError, match="no attention mask and can't be causal"):
        twin.forward_features(images(), is_causal=True)


@pytest.mark.parametrize("family", ["vit", "own"])
def test_the_start_keeps_what_softmax_computes(family: str) -> None:
    """What the calibration changes in queries and keys beside their scale is nothing to softmax."""
    model, x = teacher(family), images(8)
    name = next(iter(softmax_layers(model)))
    seen, old = watch(model, [name], x)[name], model.get_submodule(name)
    new = converted(model).get_submodule(name)
    rope = getattr(old, "rope", False)
    plain = SoftmaxAttention(16, 2, prefix=new.prefix, rope=rope)
    take_over(old, plain)
    theirs, ours = (layer.project(seen.x, seen.size) for layer in (plain, new))
    rows = [(q @ k.mT) / 8**0.5 for q, k, _ in (theirs, ours)]
    rows = [logits - logits.mean(-1, keepdim=True) for logits in rows]  # a constant per row is nothing to softmax
    scales = (rows[0] * rows[1]).sum((0, 2, 3)) / rows[0].square().sum((0, 2, 3))
    torch.testing.assert_close(rows[1], scales[:, None, None] * rows[0], rtol=1e-3, atol=1e-3 * scales.max().item())


def test_the_start_is_nearer_than_the_weights_alone() -> None:
    """In evaluation, too: the running statistics are those of the images."""
    model, x = teacher(), images(8)
    names = tuple(softmax_layers(model))
    plain = copy.deepcopy(model)
    for name, layer in exchange(plain, Conversion("laplacian", OPTIONS, names)).items():
        take_over(model.get_submodule(name), layer)
    before, after = (compare_attention(twin.train(), model, x) for twin in (plain, converted(model)))
    assert [row.layer for row in after] == list(names)
    for worse, better in zip(before, after, strict=True):
        assert better.error < 0.9 * worse.error
        assert -1 <= better.cosine <= 1


@pytest.mark.parametrize("linear", [False, True])
def test_keys_of_a_smaller_image_become_keys_of_tokens(linear: bool) -> None:
    """PVT v2: the fitted projection gives, on average over a cell, what the smaller image gave."""
    model, x = teacher("pvt", linear=linear), images(8, 64)
    name = next(iter(softmax_layers(model)))
    seen, old = watch(model, [name], x)[name], model.get_submodule(name)
    errors = []
    for fitted in (False, True):
        layer = exchange(copy.deepcopy(model), Conversion("laplacian", OPTIONS, (name,)))[name]
        take_over(old, layer)
        if fitted:
            fit_reduced(layer, old, seen.x, seen.size)
        given: list[torch.Tensor] = []
        hook = old.kv.register_forward_hook(lambda module, inputs, output, given=given: given.append(output))
        old(seen.x, seen.size)
        hook.remove()
        side = round(given[0].shape[1] ** 0.5)
        tokens = layer.qkv(seen.x)[..., 16:].mT.unflatten(-1, seen.size)
        means = nn.functional.adaptive_avg_pool2d(tokens, side).flatten(2).mT
        errors.append(relative_error(means, given[0]).item())
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("laplacian", {"gain": "learned"}),
        ("laplacian", {"gain": "auto"}),
        ("laplacian", {"gain": 3.0}),
        ("ablation", {"kernel": "gaussian", "gain": "learned"}),
        ("mean-over-queries", {"gain": "learned"}),
    ],
)
def test_the_stated_error_is_that_of_the_heads(attention: str, options: dict[str, Any]) -> None:
    model, x = teacher(), images(8)
    name = next(iter(softmax_layers(model)))
    seen, twin = watch(model, [name], x)[name], copy.deepcopy(model)
    layer = exchange(twin, Conversion(attention, {**OPTIONS, **options}, (name,)))[name]
    take_over(model.get_submodule(name), layer)
    errors = calibrate(layer, seen.x, seen.size, seen.heads)
    given: list[torch.Tensor] = []
    layer.proj.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    layer.train()(seen.x, seen.size)
    for head, error in enumerate(errors):
        part = slice(8 * head, 8 * head + 8)
        torch.testing.assert_close(relative_error(given[0][..., part], seen.heads[..., part]), error)


def test_softmax_layers_against_themselves_match_perfectly() -> None:
    """The cosine of rows of one and the same attention is 1, its error 0."""
    model = teacher("own")
    twin = copy.deepcopy(model)
    made = exchange(twin, Conversion("softmax", {}, tuple(softmax_layers(model))))
    for name, layer in made.items():
        take_over(model.get_submodule(name), layer)
    for row in compare_attention(twin, model, images()):
        assert row.error == pytest.approx(0, abs=1e-9)
        assert row.cosine == pytest.approx(1, abs=1e-5)


def test_layers_of_a_probe_have_no_convolution_after_it_either() -> None:
    """Random weights would be in its place."""
    torch.manual_seed(0)
    model = timm.create_model("attention_probe", attention="softmax", depth=2, embed_dim=16, num_classes=5).eval()
    twin = converted(model)
    assert all(twin.get_submodule(name).dwc is None for name in softmax_layers(model))
    same = copy.deepcopy(model)
    for name, layer in exchange(same, Conversion("softmax", {"rope": False}, tuple(softmax_layers(model)))).items():
        take_over(model.get_submodule(name), layer)
    torch.testing.assert_close(same.eval()(images()), model(images()))


REFUSED = {
    "windows": (lambda: timm.create_model("swin_tiny_patch4_window7_224", depths=(1,), embed_dim=24), "windows"),
    "no attention": (lambda: timm.create_model("resnet10t"), "no softmax attention"),
    "torch.nn": (lambda: nn.TransformerEncoderLayer(16, 2), "replace_attention"),
    "normalised queries": (lambda: teacher(qk_norm=True), "qk_norm"),
    "dropped patches": (lambda: teacher(patch_drop_rate=0.5), "patch_drop_rate"),
    "converted already": (lambda: converted(teacher()), "no softmax attention"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_converted_is_refused_with_the_reason(case: str) -> None:
    build, reason = REFUSED[case]
    with pytest.raises(InputError, match=reason):
        softmax_layers(build())


@pytest.mark.parametrize(
    ("conversion", "reason"),
    [
        (Conversion("laplacian", {}, ("blocks.7.attn",)), "blocks.7.attn.*blocks.0.attn to blocks.1.attn"),
        (Conversion("laplacian", {"grid": 0}, ("blocks.0.attn",)), "grid must be at least 1"),
        (Conversion("nothing", {}, ("blocks.0.attn",)), "attention must be one of laplacian"),
        (Conversion("soft", {}, ("blocks.0.attn",)), "tied=True: the softmax layer has tied=False"),
        (
            Conversion("laplacian", {"qk_norm": True}, ("blocks.0.attn",)),
            "blocks.0.attn can't be .* with qk_norm: soft",
        ),
        (Conversion("ablation", {"qk_norm": True}, ("blocks.0.attn",)), "leave qk_norm out"),
    ],
)
def test_a_conversion_that_does_not_fit_leaves_the_model_as_it_is(conversion: Conversion, reason: str) -> None:
    model = teacher()
    with pytest.raises(InputError, match=reason):
        exchange(model, conversion)
    assert len(softmax_layers(model)) == 2
    assert not hasattr(model, "conversion")
