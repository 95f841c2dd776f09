"""Laplacian attention in place of `nn.MultiheadAttention`."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laplacianformer.nn import LaplacianSelfAttention, replace_attention

DIM, HEADS = 32, 4


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    options = {"dim_feedforward": 48, "batch_first": True, "dropout": 0.0, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's, about nested tensors
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, HEADS, **options), 2)


def layers(model: nn.Module) -> list[LaplacianSelfAttention]:
    return [module for module in model.modules() if isinstance(module, LaplacianSelfAttention)]


def test_every_layer_is_replaced_and_keeps_its_projections() -> None:
    model, old = replace_attention(encoder(), grid=16), encoder()
    assert len(layers(model)) == 2
    assert not any(isinstance(module, nn.MultiheadAttention) for module in model.modules())
    for new, before in zip(layers(model), old.layers, strict=True):
        assert torch.equal(new.attention.qkv.weight, before.self_attn.in_proj_weight)
        assert torch.equal(new.attention.proj.weight, before.self_attn.out_proj.weight)
        assert new.attention.grid == (16,)


@pytest.mark.parametrize("options", [{}, {"batch_first": False}, {"bias": False}, {"norm_first": True}], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_an_encoder_trains_and_evaluates_with_padding(options: dict[str, Any], training: bool) -> None:
    """Padding changes nothing, whatever path torch takes, and every parameter has a gradient."""
    model = replace_attention(encoder(**options), grid=8).train(training)
    first = options.get("batch_first", True)
    x = torch.randn(3, 40, DIM)
    lengths = torch.tensor([40, 25, 7])

    def run(model: nn.Module, tokens: int) -> Tensor:
        padded = torch.cat([x, torch.full((3, tokens - 40, DIM), 9.0)], dim=1)
        padding = torch.arange(tokens) >= lengths[:, None]
        out = model(padded if first else padded.transpose(0, 1), src_key_padding_mask=padding)
        out = out if first else out.transpose(0, 1)
        return torch.cat([out[i, :n] for i, n in enumerate(lengths)])

    short, long = (run(copy.deepcopy(model), tokens) for tokens in (40, 61))
    torch.testing.assert_close(long, short, rtol=1e-3, atol=1e-4)
    run(model, 40).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_tokens_matter_to_each_other() -> None:
    model = replace_attention(encoder()).eval()
    x = torch.randn(1, 100, DIM)
    changed = x.clone()
    changed[0, 50] += 3
    assert not torch.allclose(model(x)[0, 0], model(changed)[0, 0], atol=1e-5)


def test_kernels_are_neither_nothing_nor_one_at_the_start() -> None:
    """Without the norm of queries and keys they are about exp(-25) with heads of 64 channels."""
    torch.manual_seed(0)
    x = torch.randn(2, 200, 512)
    for options, low, high in (({}, 0.1, 0.9), ({"qk_norm": False}, 0.0, 1e-3)):
        layer = nn.TransformerEncoderLayer(512, 8, batch_first=True)
        attention = replace_attention(layer, **options).self_attn.attention
        assert low < attention.factors(x, (200,)).c.mean() < high


def test_one_sequence_without_a_batch() -> None:
    layer = replace_attention(nn.MultiheadAttention(DIM, HEADS)).eval()
    assert isinstance(layer, LaplacianSelfAttention)
    x = torch.randn(70, DIM)
    whole = x[:, None]
    batched, _ = layer(whole, whole, whole)
    alone, weights = layer(x, x, x)
    assert weights is None
    torch.testing.assert_close(alone, batched[:, 0])


def test_masks_of_zeros_and_minus_infinity_are_those_of_bool() -> None:
    layer = LaplacianSelfAttention(DIM, HEADS, batch_first=True).eval()
    x, padding = torch.randn(2, 70, DIM), torch.rand(2, 70) < 0.3
    added = torch.zeros(2, 70).masked_fill(padding, -torch.inf)
    assert torch.equal(layer(x, x, x, padding)[0], layer(x, x, x, added)[0])
    with pytest.raises(ValueError, match="bool, or a tensor of 0 and -inf"):
        layer(x, x, x, added.clamp(min=-1.0))


@pytest.mark.parametrize("shape", [(70, 2), (140,), (1, 140), (2, 69)], ids=str)
def test_a_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """One of (N, B) has the right number of elements, and would hide other tokens than those that were meant."""
    layer, x = LaplacianSelfAttention(DIM, HEADS, batch_first=True), torch.randn(2, 70, DIM)
    with pytest.raises(ValueError, match=r"key_padding_mask must be \(B, N\) of \(2, 70\) tokens, got "):
        layer(x, x, x, torch.zeros(shape, dtype=torch.bool))


def test_one_sequence_has_a_mask_without_a_batch() -> None:
    layer, x = LaplacianSelfAttention(DIM, HEADS).eval(), torch.randn(70, DIM)
    padding = torch.arange(70) >= 50
    whole = x[:, None]
    batched, _ = layer(whole, whole, whole, padding[None])
    torch.testing.assert_close(layer(x, x, x, padding)[0], batched[:, 0])
    with pytest.raises(ValueError, match=r"key_padding_mask must be \(N,\) of 70 tokens, got \(1, 70\)"):
        layer(x, x, x, padding[None])


@pytest.mark.slow
def test_an_encoder_with_padding_compiles_to_one_graph() -> None:
    torch._dynamo.reset()
    model, x = replace_attention(encoder(), grid=8).eval(), torch.randn(2, 30, DIM)
    padding = torch.arange(30) >= torch.tensor([30, 11])[:, None]
    expected = model(x, src_key_padding_mask=padding)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_with_two_names_is_replaced_under_both() -> None:
    model = nn.ModuleDict({"first": nn.MultiheadAttention(DIM, HEADS)})
    model["second"] = model["first"]
    replace_attention(model)
    assert isinstance(model["first"], LaplacianSelfAttention)
    assert model["second"] is model["first"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 3), "Linear has no nn.MultiheadAttention"),
        (nn.TransformerDecoderLayer(DIM, HEADS), "is a decoder, with causal and cross attention"),
        (nn.MultiheadAttention(DIM, HEADS, kdim=8), "keys or values have another width than queries"),
        (nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True), "add_bias_kv and add_zero_attn have no counterpart"),
    ],
    ids=["none", "decoder", "cross", "bias"],
)
def test_what_has_no_linear_form_is_refused(model: nn.Module, message: str) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        replace_attention(model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_causal_and_cross_attention_are_refused_with_the_reason() -> None:
    model, x = replace_attention(encoder()), torch.randn(2, 70, DIM)
    with pytest.raises(ValueError, match="takes no attn_mask and can't be causal"):
        model(x, mask=nn.Transformer.generate_square_subsequent_mask(70), is_causal=True)
    with pytest.raises(ValueError, match="query, key and value must be one tensor"):
        layers(model)[0](x, x + 1, x + 1)
