"""The encoder: padding changes nothing, controls are controls, and its sizes are those of the published comparison."""

from typing import Any

import pytest
import torch
from timm.models import group_parameters

from laplacianformer.sequences import SequenceEncoder
from laplacianformer.sequences._encoder import _KINDS

MIXERS = [*_KINDS, "none", "mean"]


def encoder(attention: str = "laplacian", **changed: Any) -> SequenceEncoder:
    torch.manual_seed(0)
    model = SequenceEncoder(20, 64, 5, attention=attention, **{"landmarks": 8, "dim": 16, "mlp_dim": 24, **changed})
    with torch.no_grad():  # large enough for differences to show
        model.embedding.weight.mul_(50)
        model.positions.weight.mul_(20)
    return model.eval()


def padded(tokens: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    more = torch.randint(20, (len(tokens), length - tokens.shape[1]))  # what stands in the padding must not matter
    mask = torch.arange(length).expand(len(tokens), -1) < tokens.shape[1]
    return torch.cat([tokens, more], 1), mask.clone()


@pytest.mark.parametrize("attention", MIXERS)
@pytest.mark.parametrize("training", [False, True])
def test_padding_changes_nothing(attention: str, training: bool) -> None:
    model = encoder(attention, dropout=0.0).train(training)
    tokens = torch.randint(20, (3, 33))
    alone = model(tokens)
    model = encoder(attention, dropout=0.0).train(training)
    together = model(*padded(tokens, 50))
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", MIXERS)
def test_sequences_of_different_lengths_in_a_batch_are_as_alone(attention: str) -> None:
    model = encoder(attention)
    short, long = torch.randint(20, (1, 21)), torch.randint(20, (1, 40))
    tokens, mask = padded(short, 40)
    both = model(torch.cat([tokens, long]), torch.cat([mask, torch.ones(1, 40, dtype=torch.bool)]))
    torch.testing.assert_close(both, torch.cat([model(short), model(long)]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", MIXERS)
def test_only_the_controls_without_mixing_ignore_what_stands_elsewhere(attention: str) -> None:
    """The features of the first token, before pooling, when a token far away changes."""
    model = encoder(attention)
    seen: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output[0, 0]))
    tokens = torch.randint(1, 20, (1, 60))
    model(tokens)
    changed = tokens.clone()
    changed[0, 40:] = 0
    model(changed)
    assert torch.equal(seen[0], seen[1]) == (attention in ("none", "local", "no-mixing"))


def test_the_control_mean_gives_every_token_the_same() -> None:
    layer = encoder("mean").layers[0].attention
    out = layer(torch.randn(2, 9, 16), (9,), mask=torch.arange(9).expand(2, -1) < 7)
    assert torch.equal(out, out[:, :1].expand_as(out))


def test_local_is_every_mixer_without_its_attention() -> None:
    model, tokens = encoder("local"), torch.randint(1, 20, (1, 60))
    seen: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output[0, 0]))
    for position in (1, 2, 3):
        changed = tokens.clone()
        changed[0, position] = 0
        model(changed)
    model(tokens)
    reaches = [not torch.equal(seen[index], seen[3]) for index in range(3)]
    assert reaches == [True, True, False], "two layers of three taps reach two tokens"


def test_without_the_convolution_attention_alone_mixes_tokens() -> None:
    """What a token gives then does not depend on the order of the others, beside their positions."""
    model = encoder("no-mixing", local=False)
    assert not any("dwc" in name for name, _ in model.named_parameters())
    layer, x = model.layers[0].attention, torch.randn(1, 9, 16)
    changed = x.clone()
    changed[:, 4] = 0
    differs = (layer(x, (9,)) != layer(changed, (9,))).any(-1)[0]
    assert differs.tolist() == [position == 4 for position in range(9)]
    softmax = encoder("softmax", local=False).layers[0].attention
    torch.testing.assert_close(softmax(x.flip(1), (9,)), softmax(x, (9,)).flip(1))


def test_the_default_is_the_encoder_of_the_published_comparison() -> None:
    model = SequenceEncoder(257, 4000, 2, attention="softmax")
    assert (len(model.layers), model.embedding.embedding_dim, model.layers[0].attention.num_heads) == (2, 64, 2)
    assert [layer.mlp[0].out_features for layer in model.layers] == [128, 128]
    assert model.layers[0].attention.rope is False
    assert {layer.dropout.p for layer in model.layers} == {0.1}


@pytest.mark.parametrize(
    ("attention", "name", "number"),
    [
        ("laplacian", "grid", 128),
        ("ablation", "grid", 128),
        ("nystromformer", "grid", 128),
        ("soft++", "grid", 128),
        ("skyformer", "grid", 64),  # of queries, and as many of keys
    ],
)
def test_every_mixer_has_as_many_landmarks(attention: str, name: str, number: int) -> None:
    layer = SequenceEncoder(20, 2000, 2, attention=attention).layers[0].attention
    assert getattr(layer, name) in (number, (number,))
    assert SequenceEncoder(20, 64, 2, attention="performer").layers[0].attention.omega.shape[1] == 128
    own = SequenceEncoder(20, 64, 2, attention=attention, attention_args={"grid": 5}).layers[0].attention
    assert own.grid in (5, (5,))


def test_pairs_are_encoded_alike_and_compared() -> None:
    model = encoder(pairs=True)
    one, two = torch.randint(20, (2, 4, 30))
    there, back = model(torch.stack([one, two], 1)), model(torch.stack([two, one], 1))
    assert there.shape == (4, 5)
    assert not torch.allclose(there, back), "a difference has a sign"
    tokens, mask = padded(one, 45)
    longer, all_true = padded(two, 45)[0], torch.ones(4, 45, dtype=torch.bool)
    cut = model(torch.stack([tokens, longer], 1), torch.stack([mask, all_true], 1))
    same = model(torch.stack([tokens.masked_fill(~mask, 0), longer], 1), torch.stack([mask, all_true], 1))
    torch.testing.assert_close(cut, same)


def test_a_sequence_in_which_nothing_counts_gives_finite_numbers() -> None:
    for attention in MIXERS:
        mask = torch.tensor([[False] * 10, [True] * 10])
        out = encoder(attention)(torch.randint(20, (2, 10)), mask)
        assert out.isfinite().all(), attention


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        (torch.zeros(2, 65, dtype=torch.long), None, "expected 1 to 64 tokens, got 65"),
        (torch.zeros(2, 0, dtype=torch.long), None, "expected 1 to 64 tokens, got 0"),
        (torch.zeros(2, 2, 9, dtype=torch.long), None, r"tokens of shape \(B, N\), got \(2, 2, 9\)"),
        (torch.zeros(2, 9, dtype=torch.long), torch.ones(2, 8, dtype=torch.bool), r"shape \(2, 9\), got .*\(2, 8\)"),
        (torch.zeros(2, 9, dtype=torch.long), torch.ones(2, 9), "a mask of booleans"),
    ],
)
def test_wrong_tokens_and_masks_are_refused(tokens: torch.Tensor, mask: torch.Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder()(tokens, mask)


def test_a_mask_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a mask of booleans in a tensor, got list"):
        encoder()(torch.zeros(1, 9, dtype=torch.long), [[True] * 9])


def test_wrong_mixers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"attention must be one of laplacian, .*local, none, mean, got 'magic'"):
        SequenceEncoder(20, 64, 2, attention="magic")
    with pytest.raises(ValueError, match="attention='none' has no attention_args"):
        SequenceEncoder(20, 64, 2, attention="none", attention_args={"gain": 1})
    with pytest.raises(
        ValueError, match=r'attention="local" is the convolution alone: local=False would leave nothing'
    ):
        SequenceEncoder(20, 64, 2, attention="local", local=False)


def test_layers_are_in_the_order_of_the_forward_pass_for_learning_rates() -> None:
    model = SequenceEncoder(16, 20, 2, landmarks=4, dim=16, depth=2)
    layers = group_parameters(model, model.group_matcher(), reverse=True)
    assert layers["embedding.weight"] == layers["positions.weight"] == 0
    found = [layers[f"layers.{index}.attention.qkv.weight"] for index in range(2)] + [layers["head.2.weight"]]
    assert found == [1, 2, 3]
    assert layers["norm.weight"] == 2
    assert len(layers) == len(list(model.parameters()))
