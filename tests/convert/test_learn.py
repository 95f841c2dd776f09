"""What new layers may learn: what changes and what does not, and that what is saved is an ordinary layer."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from laplacianformer import LaplacianAttention, load_weights
from laplacianformer._util.errors import InputError
from laplacianformer.convert import Convert, convert
from laplacianformer.convert._learn import adapt, fold
from laplacianformer.convert._run import start_layers
from laplacianformer.model._conversion import Conversion, exchange, softmax_layers
from tests.convert.helpers import QUICK, Stop, Stopping, arguments, images, teacher

RANK = 2
LEARN = ("scales", "low-rank", "directions")
FEW = (*QUICK, "match.epochs=2", "distil.epochs=1", f"convert.rank={RANK}")


def started() -> Any:
    """A converted model whose layers have learned nothing yet."""
    model = teacher()
    twin = copy.deepcopy(model)
    layers = exchange(twin, Conversion("laplacian", {"grid": 2, "gain": "learned"}, tuple(softmax_layers(model))))
    start_layers(model, layers, images(4))
    return twin


def adapted(model: Any, learn: Any, rank: int = RANK) -> list[LaplacianAttention]:
    layers = [model.get_submodule(name) for name in model.conversion.layers]
    adapt(layers, Convert(learn=learn, rank=rank))
    return layers


def learned(learn: str) -> tuple[Any, Any]:
    """A model before and after some steps, everything folded."""
    before = started()
    after = copy.deepcopy(before)
    layers = adapted(after, learn)
    parameters = [part for layer in layers for part in layer.parameters() if part.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=0.02)
    for _ in range(3):
        optimiser.zero_grad()
        after(images(4)).square().sum().backward()
        optimiser.step()
    fold(after)
    return before, after


def parts(model: Any) -> dict[str, Tensor]:
    return {name: part.detach() for name, part in model.blocks[0].attn.named_parameters()}


@pytest.mark.parametrize("learn", LEARN)
def test_layers_start_as_they_were_bit_for_bit(learn: str) -> None:
    model, x = started().eval(), images()
    before = model(x)
    layers = adapted(model, learn)
    assert torch.equal(model(x), before)
    fold(model)
    assert all(type(layer.qkv) is nn.Linear and type(layer.proj) is nn.Linear for layer in layers)
    assert all(part.requires_grad for part in model.parameters())
    assert torch.equal(model(x), before)


def test_scales_change_one_factor_of_queries_and_keys_per_head() -> None:
    before, after = (parts(model) for model in learned("scales"))
    factors = after["qkv.weight"] / before["qkv.weight"]
    of_heads = factors[:32].reshape(2, 2, 8 * 16)  # queries and keys, heads
    torch.testing.assert_close(of_heads, of_heads[:1, :, :1].expand_as(of_heads))
    assert (of_heads - 1).abs().amin() > 1e-3
    torch.testing.assert_close(after["qkv.bias"][:32], before["qkv.bias"][:32] * factors[:32, 0])
    assert torch.equal(factors[32:], torch.ones(16, 16)), "values"
    assert not torch.equal(after["gain"], before["gain"])
    for name in ("proj.weight", "proj.bias", "dwc.weight", "dwc.bias"):
        assert torch.equal(after[name], before[name]), name


def test_directions_change_all_but_the_norm_of_queries_and_keys_of_a_head() -> None:
    before, after = (parts(model) for model in learned("directions"))
    norms = []
    for found in (before, after):
        rows = torch.cat([found["qkv.weight"], found["qkv.bias"][:, None]], dim=1)[:32].reshape(2, 2, 8 * 17)
        norms.append(rows.square().sum((0, 2)).sqrt())
    torch.testing.assert_close(norms[1], norms[0])
    assert all((after[name] - before[name]).abs().max() > 1e-3 for name in before)


def test_updates_of_low_rank_have_that_rank() -> None:
    before, after = (parts(model) for model in learned("low-rank"))
    for name, rows in (("proj.weight", slice(0, 16)), ("qkv.weight", slice(32, 48))):
        values = torch.linalg.svdvals((after[name] - before[name])[rows].double())
        assert values[RANK] < 1e-5 * values[0], name
        assert values[RANK - 1] > 1e-3 * values[0], name
    assert all(not torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("learn", LEARN)
def test_a_model_of_the_file_is_the_one_that_was_trained(learn: str, tmp_path: Path) -> None:
    """An ordinary file, with layers like any other; also of an average of the weights. `distil` trains all else."""
    overrides = [*FEW, f"convert.learn={learn}", "distil.ema_decay=0.9"]
    result = convert(teacher(), images(20), tmp_path / "run", model_args=arguments(), overrides=overrides)
    loaded, x = load_weights(result.weights).model, images()
    assert type(loaded.blocks[0].attn) is LaplacianAttention
    assert torch.equal(loaded(x), result.model(x))
    assert set(loaded.state_dict()) == set(load_file(result.weights))
    matched = load_weights(tmp_path / "run/match/model.safetensors").model
    assert not torch.equal(matched.blocks[0].mlp.fc1.weight, loaded.blocks[0].mlp.fc1.weight)
    same = torch.equal(matched.blocks[0].attn.proj.weight, loaded.blocks[0].attn.proj.weight)
    assert same == (learn == "scales")


@pytest.mark.slow
@pytest.mark.parametrize("learn", LEARN)
def test_an_interrupted_run_continues_bit_for_bit(learn: str, tmp_path: Path) -> None:
    def run(name: str, **options: Any) -> Any:
        chosen = [*FEW, f"convert.learn={learn}", "run.checkpoint_steps=1"]
        return convert(teacher(), images(20), tmp_path / name, model_args=arguments(), overrides=chosen, **options)

    first = run("whole")
    for phase, step in (("match", 4), ("distil", 2)):
        with pytest.raises(Stop):
            run("parts", resume=True, report=Stopping(phase, step))
    second = run("parts", resume=True)
    expected, found = load_file(first.weights), load_file(second.weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("attention", ["linear", "inline", "no-mixing", "hedgehog", "mean-over-queries"])
def test_other_mixers_learn_updates_of_low_rank(attention: str, tmp_path: Path) -> None:
    chosen = [*FEW, f"convert.attention={attention}", "convert.attention_args={}", "convert.learn=low-rank"]
    result = convert(teacher(), images(20), tmp_path / "run", model_args=arguments(), overrides=chosen)
    x = images()
    assert torch.equal(load_weights(result.weights).model(x), result.model(x))
    matched = load_file(tmp_path / "run/match/model.safetensors")
    change = (matched["blocks.0.attn.proj.weight"] - teacher().blocks[0].attn.proj.weight).double()
    values = torch.linalg.svdvals(change)
    assert values[RANK] < 1e-4 * values[0]
    assert values[0] > 1e-4


@pytest.mark.parametrize(("attention", "learn"), [("no-mixing", "scales"), ("linear", "directions")])
def test_scales_of_a_mixer_without_any_are_refused(attention: str, learn: str, tmp_path: Path) -> None:
    chosen = [*FEW, f"convert.attention={attention}", "convert.attention_args={}", f"convert.learn={learn}"]
    with pytest.raises(InputError, match=f"needs Laplacian attention, and {attention} has no scale"):
        convert(teacher(), images(20), tmp_path / "run", model_args=arguments(), overrides=chosen)
    assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.parametrize("learn", LEARN)
def test_layers_of_a_pyramid_are_folded_too(learn: str, tmp_path: Path) -> None:
    """Of PVT v2, whose keys come from a smaller image."""
    chosen = [*FEW, f"convert.learn={learn}"]
    result = convert(teacher("pvt"), images(20), tmp_path / "run", model_args=arguments("pvt"), overrides=chosen)
    x = images()
    assert torch.equal(load_weights(result.weights).model(x), result.model(x))


def test_a_rank_above_the_width_is_refused() -> None:
    with pytest.raises(InputError, match=r"convert\.rank=17 is more than the 16 channels"):
        adapted(started(), "low-rank", rank=17)
