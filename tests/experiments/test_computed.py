"""Experiments that compute and do not train: each in its quick form, from the command line to the plot."""

import json
import math
from typing import get_args

import pytest
import timm
import torch
from PIL import Image

from laplacianformer import cli, ops
from laplacianformer._util.errors import InputError
from laplacianformer.attention import ATTENTIONS
from laplacianformer.classification import load_recipe
from laplacianformer.experiments import (
    accuracy_flops,
    frame,
    gradients,
    injectivity,
    inputs,
    memory,
    op_accuracy,
    op_time,
    qk_distances,
    rivals,
    solver_convergence,
)
from laplacianformer.experiments.rows import read_rows
from tests.helpers import save_small

pytest.importorskip("matplotlib")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table", "verdict"),
    [
        ("solver-convergence", "errors.csv", "agrees in part"),
        ("gradients", "lengths.csv", "agrees"),
        ("accuracy-flops", "models.csv", "agrees in part"),
        ("injectivity", "separation.csv", "agrees"),
        ("qk-distances", "tails.csv", "not confirmed at this scale"),
        ("op-accuracy", "errors.csv", None),  # depends on the machine
        ("op-time", "times.csv", None),
        ("memory", "memory.csv", None),
    ],
)
def test_quick_form(name, table, verdict, tmp_path, capsys) -> None:
    cli.main(["reproduce", name, "--quick", "--output", str(tmp_path)])
    folder = tmp_path / name
    written = json.loads((folder / "verdict.json").read_text())
    assert written["verdict"] == verdict if verdict else written["verdict"] in get_args(frame.Verdict)
    assert written["commit"]
    assert written["verdict"] in capsys.readouterr().out
    assert read_rows(folder / table)
    with Image.open(folder / f"{name}.png") as picture:
        assert min(picture.size) > 400


def test_the_papers_start_keeps_an_eigenvalue_of_one_away_from_its_inverse() -> None:
    """The residual there is 1 - 2 = -1, whose square is 1."""
    rows = [row for row in solver_convergence.measure(seed=0, steps=20) if row["matrix"] == "2"]
    assert solver_convergence.steps_needed(rows, "2", "Newton-Schulz, the paper's start") == float("inf")
    assert solver_convergence.steps_needed(rows, "2", "Newton-Schulz, identity start") < 10


@pytest.mark.parametrize("width", [1, 32])
def test_norms_of_gradients_are_those_of_the_formulas(width) -> None:
    for row in gradients.measure(directions=2):
        if row["width"] == width and row["kernel"] == "gaussian":
            distance = row["distance"]
            expected = distance / 16 * 2.718281828459045 ** (-(distance**2) / 32)
            assert row["length"] == pytest.approx(expected, rel=1e-9, abs=1e-300)


# ---- injectivity ----


def test_equal_rows_collide_unless_their_queries_are_equal() -> None:
    q = torch.randn(1, 5, 3, dtype=torch.float64)
    weights = torch.randn(1, 5, 5, dtype=torch.float64)
    weights[:, 1] = weights[:, 0]
    assert injectivity.compared(weights, q)["collisions"] == 1
    q[:, 1] = q[:, 0]
    found = injectivity.compared(weights, q)
    assert (found["collisions"], found["pairs"], found["rank"]) == (0, 9, 4)


@pytest.mark.parametrize(
    ("ours", "linear", "verdict"), [(0, 3, "agrees"), (0, 0, "agrees in part"), (1, 3, "disagrees")]
)
def test_the_verdict_on_injectivity_follows_collisions(ours, linear, verdict) -> None:
    rows = [
        {"queries": "random", "method": method, "collisions": 0, "separation": 0.1, "rank": 64.0}
        for method in injectivity.METHODS
    ]
    rows[0]["collisions"] = ours
    next(row for row in rows if row["method"] == injectivity.LINEAR)["collisions"] = linear
    assert injectivity.judge(rows).verdict == verdict


# ---- distances of queries and keys ----


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("deit_tiny_patch16_224", {"img_size": 64, "depth": 2}),
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "depths": [2, 1]}),
        ("pvt_v2_b0", {}),
    ],
)
def test_queries_and_keys_are_those_that_the_layer_multiplies(name, arguments, monkeypatch) -> None:
    """Compared with the arguments of PyTorch's attention, which all layers are told to use."""
    model = timm.create_model(name, num_classes=0, **arguments).eval()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True
    multiplied = []
    original = torch.nn.functional.scaled_dot_product_attention

    def record(q, k, *rest, **options):
        multiplied.append((q, k))
        return original(q, k, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    with inputs.queries_and_keys(model) as seen, torch.no_grad():
        model(torch.randn(1, 3, 64, 64))
    assert len(seen) == len(multiplied) > 0
    for (_, q, k), (given_q, given_k) in zip(seen, multiplied, strict=True):
        torch.testing.assert_close(q, given_q)
        torch.testing.assert_close(k, given_k)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("laplacian", {"qk_norm": True}),
        ("ablation", {"qk_norm": True, "tied": True}),
        ("soft", {}),
        ("spatial-reduction", {"ratio": 2}),
    ],
)
def test_queries_and_keys_of_the_mixers_here_are_those_that_are_mixed(name, options, monkeypatch) -> None:
    torch.manual_seed(0)
    layer, given = ATTENTIONS[name](16, 2, **options).eval(), []
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(3)
    mix = layer.mix
    monkeypatch.setattr(layer, "mix", lambda q, k, *rest: (given.extend((q, k)), mix(q, k, *rest))[1])
    with inputs.queries_and_keys(layer) as seen, torch.no_grad():
        layer(torch.randn(2, 24, 16), (4, 6))
    ((_, *found),) = seen
    torch.testing.assert_close(found, given)


@pytest.mark.slow
def test_trained_models_are_listed_beside_random_ones(tmp_path, monkeypatch) -> None:
    save_small(tmp_path / "small.safetensors")
    monkeypatch.setattr(qk_distances, "train", lambda *given, **options: None)
    monkeypatch.setattr(qk_distances, "weights_of", lambda run, work: tmp_path / "small.safetensors")
    monkeypatch.setattr(qk_distances, "PAIRS", 256)
    cli.main(["reproduce", "qk-distances", "--cifar10", "digits", "--output", str(tmp_path)])
    rows = read_rows(tmp_path / "qk-distances" / "tails.csv")
    assert {(row["model"], row["weights"]) for row in rows} == {
        (model, weights) for model in qk_distances.MODELS for weights in ("random", "trained")
    }
    verdict = json.loads((tmp_path / "qk-distances" / "verdict.json").read_text())
    assert verdict["verdict"] in ("agrees", "agrees in part", "disagrees")
    assert "trained weights: l1" in verdict["measured"]


@pytest.mark.parametrize("name", qk_distances.MODELS)
def test_the_small_transformers_are_models_of_a_recipe(name) -> None:
    recipe = load_recipe("ablation", qk_distances.MODELS[name])
    model = timm.create_model(recipe.model.name, num_classes=10, **recipe.model.args)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) < 2.5e6


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(InputError, match="no attention layers"), inputs.queries_and_keys(torch.nn.Linear(2, 2)):
        pass


def test_tails_of_known_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(3, 2**16, generator=generator, dtype=torch.float64)
    found = qk_distances.tails(10 + normal)
    assert abs(found["excess_kurtosis"]) < 0.1
    assert found["outliers"] < 1e-4
    assert found["variation"] == pytest.approx(0.1, rel=0.02)
    assert qk_distances.tails(normal.exp())["excess_kurtosis"] > 10
    assert qk_distances.tails(normal.exp())["outliers"] > 0.02


@pytest.mark.parametrize(
    ("l1", "squared", "verdict"),
    [(0.5, 3.0, "agrees"), (0.1, 0.3, "agrees in part"), (3.0, 0.5, "disagrees")],
)
def test_a_tail_must_be_heavy_and_heavier(l1, squared, verdict) -> None:
    rows = [
        {"distance": distance, "weights": "trained", "excess_kurtosis": size, "outliers": size, "variation": size}
        for distance, size in (("l1", l1), ("l2 squared", squared), ("l2", 0.1))
    ]
    assert qk_distances.judge(rows).verdict == verdict
    random = [row | {"weights": "random"} for row in rows]
    assert qk_distances.judge(random).verdict == "not confirmed at this scale"


# ---- kernels ----


def test_the_plain_formulas_that_are_timed_are_those_of_the_ops() -> None:
    x = torch.rand(1, 2, 20, 4)
    for op, given in (("laplacian_kernel", x), ("newton_schulz", rivals.plain_kernel(x, x, 4.0))):
        torch.testing.assert_close(op_time.PLAIN[op](given), op_time.OURS[op](given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["plain", "cdist", "sklearn", "keops"])
def test_every_rival_computes_the_kernel_and_its_product(method) -> None:
    x, y, values = torch.rand(2, 20, 4), torch.rand(2, 9, 4), torch.rand(2, 9, 3)
    kernel = ops.laplacian_kernel(x, y, 3.0)
    if method == "sklearn":
        if (function := rivals.sklearn_kernel()) is None:
            pytest.skip("scikit-learn is not installed")
        found = torch.stack([torch.as_tensor(matrix) for matrix in function(x, y, 3.0)])
        torch.testing.assert_close(found, kernel, check_dtype=False)
        return
    functions = {"plain": rivals.plain_matmul, "cdist": rivals.cdist_matmul, "keops": rivals.keops_matmul()}
    if functions[method] is None:
        pytest.skip("pykeops is not installed")
    torch.testing.assert_close(functions[method](x, y, values, 3.0), kernel @ values)


def test_passes_of_a_function_are_its_values_and_its_gradients() -> None:
    x, y = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3)
    assert not rivals.forward(torch.mul, [x, y])().requires_grad
    gradients_of_both = rivals.forward_backward(torch.mul, [x, y])()
    torch.testing.assert_close(gradients_of_both[0] / y, gradients_of_both[1] / x.detach())


def test_an_error_of_one_digit_is_seen() -> None:
    case = {"op": "laplacian_kernel", "size": 64, "dtype": "float32", "direction": "forward"}
    for factor, verdict in ((1.5, "agrees"), (5, "agrees in part"), (50, "disagrees")):
        rows = [
            case | {"backend": name, "error": error} for name, error in (("reference", 1e-7), ("cpu", factor * 1e-7))
        ]
        assert op_accuracy.judge(rows).verdict == verdict


# ---- memory ----


def test_the_exponent_is_the_slope_of_logarithms() -> None:
    rows = [
        {"method": "SOFT", "part": "forward", "tokens": n, "megabytes": 3 * n**1.5, "seconds": 0.0}
        for n in (256, 1024, 4096)
    ]
    assert memory.exponent(rows, "SOFT", "forward", "megabytes") == pytest.approx(1.5)
    assert math.isnan(memory.exponent(rows, "SOFT", "training", "megabytes"))


def test_the_stored_matrix_is_softmax_attention() -> None:
    torch.manual_seed(0)
    stored, fused = memory.METHODS["Transformer"](64, 2), memory.METHODS["softmax, fused"](64, 2)
    fused.load_state_dict(stored.state_dict())
    x = torch.randn(1, 16, 64)
    torch.testing.assert_close(stored(x, (4, 4)), fused(x, (4, 4)))


# ---- accuracy and cost ----


@pytest.mark.parametrize(("points", "verdict"), [(None, "agrees in part"), (-0.2, "agrees"), (-2.0, "agrees in part")])
def test_measured_accuracies_count_where_there_are_any(points, verdict) -> None:
    rows = []
    for group, model, parameters, flops, accuracy in accuracy_flops.REPORTED:
        row = {"group": group, "model": model, "reported_parameters_m": parameters, "reported_gflops": flops}
        if model.startswith(accuracy_flops.OURS):
            row |= {"parameters_m": parameters, "gmacs": flops} | (
                {} if points is None else {"top1": accuracy + points}
            )
        rows.append(row | {"reported_top1": accuracy})
    outcome = accuracy_flops.judge(rows)
    assert outcome.verdict == verdict
    assert ("LaplacianFormer-Tiny -0.2" in outcome.measured) == (points == -0.2)
