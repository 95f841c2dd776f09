"""The global branch replaced: by its mean over queries, or by nothing, in all layers or some, and back again."""

import pytest
import timm
import torch
from torch import nn

from laplacianformer import InputError, LaplacianAttention
from laplacianformer.attention import ATTENTIONS
from laplacianformer.inspect import without_attention

SMALL = {"depths": [1, 1], "embed_dims": [16, 16], "num_heads": [1, 1], "mlp_ratios": [1, 1], "num_classes": 3}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_mixer_becomes_a_mean_or_nothing_and_comes_back(name: str) -> None:
    torch.manual_seed(0)
    layer = ATTENTIONS[name](16, 1).eval()
    nn.init.zeros_(layer.dwc.weight)  # the global branch alone
    x = torch.randn(2, 9, 16)
    out = layer(x, (3, 3))
    with without_attention(layer, "mean"):
        torch.testing.assert_close(layer(x, (3, 3)), out.mean(1, keepdim=True).expand_as(out))
        with without_attention(layer, "off"):
            torch.testing.assert_close(layer(x, (3, 3)), layer.proj(layer.dwc.bias).expand_as(out))
        torch.testing.assert_close(layer(x, (3, 3)), out.mean(1, keepdim=True).expand_as(out))
    assert torch.equal(layer(x, (3, 3)), out)


def test_padding_is_no_part_of_the_mean() -> None:
    torch.manual_seed(0)
    layer = LaplacianAttention(16, 1, axes=1).eval()
    x = torch.randn(1, 9, 16)
    padded = torch.cat([x, torch.full((1, 4, 16), 9.0)], dim=1)
    mask = torch.arange(13)[None] < 9
    with without_attention(layer, "mean"):
        torch.testing.assert_close(layer(padded, (13,), mask)[:, :9], layer(x, (9,)))


def test_the_name_of_a_part_stands_for_the_layers_in_it() -> None:
    model = timm.create_model("laplacianformer_nano", **SMALL).eval()
    images = torch.randn(1, 3, 16, 16)
    first, second = (f"stages.{index}.blocks.0.attention" for index in range(2))
    for names, expected in ((None, [first, second]), (["stages.1"], [second]), ([first, second], [first, second])):
        with without_attention(model, "off", names) as layers:
            assert list(layers) == expected
    before = model.stages[0](images)
    with without_attention(model, "off", ["stages.1"]):
        assert torch.equal(model.stages[0](images), before)
    with without_attention(model, "off", ["stages.0"]):
        assert not torch.equal(model.stages[0](images), before)


def test_what_can_not_be_replaced_is_refused() -> None:
    model = timm.create_model("laplacianformer_nano", **SMALL)
    with pytest.raises(InputError, match=r"no attention layer 'stages.7'; there are stages\.0\.blocks\.0\.attention"):
        without_attention(model, "mean", ["stages.7"])
    with pytest.raises(InputError, match=r"no attention layer 'stages.1.blo'"):
        without_attention(model, "mean", ["stages.1.blo"])
    with pytest.raises(InputError, match=r"by mean or off, got 'none'"):
        without_attention(model, "none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Linear has no attention of this package"):
        without_attention(nn.Linear(1, 1))
