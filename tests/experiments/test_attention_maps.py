import json

import pytest
import torch
from PIL import Image

from laplacianformer import cli
from laplacianformer.attention import AblationAttention, LaplacianAttention
from laplacianformer.experiments import attention_maps
from laplacianformer.experiments.rows import read_rows
from laplacianformer.experiments.spectra import effective_rank
from tests.helpers import save_small, small_model

pytest.importorskip("matplotlib")


def test_quick_form_with_given_weights(tmp_path) -> None:
    save_small(tmp_path / "small.safetensors")
    weights = ["--weights", str(tmp_path / "small.safetensors")]
    cli.main(["reproduce", "attention-maps", "--quick", "--output", str(tmp_path), *weights])
    folder = tmp_path / "attention-maps"
    assert "weights small.safetensors" in json.loads((folder / "verdict.json").read_text())["measured"]
    models = {row["model"] for row in read_rows(folder / "singular-values.csv")}
    assert models >= {"LaplacianFormer, laplacian", "LaplacianFormer, gaussian", "lambda = 0.5", "lambda = 8"}
    with Image.open(folder / "attention-maps.png") as picture:
        assert min(picture.size) > 400


@pytest.mark.slow
def test_models_that_were_trained_with_each_kernel_and_lambda(tmp_path, monkeypatch) -> None:
    """The trainings are those of other experiments; here, all of them give the same weights."""
    save_small(tmp_path / "small.safetensors")
    trained = []
    monkeypatch.setattr(attention_maps, "train", lambda settings, runs, weights: trained.extend(runs))
    monkeypatch.setattr(attention_maps, "weights_of", lambda run, work: tmp_path / "small.safetensors")
    cli.main(["reproduce", "attention-maps", "--cifar10", "digits", "--output", str(tmp_path)])
    models = {row["model"] for row in read_rows(tmp_path / "attention-maps" / "ranks.csv")}
    assert models == {run.labels["model"] for run in trained}
    assert models >= {"SOFT++, gaussian", "Skyformer, laplacian", "LaplacianFormer, gaussian", "lambda = 0.5"}
    assert len({run.key for run in trained}) == len(trained) - 1  # lambda = 4 is the default run
    verdict = json.loads((tmp_path / "attention-maps" / "verdict.json").read_text())
    assert verdict["verdict"] == "not confirmed at this scale"
    assert "SOFT++ +0.00 ± 0.00" in verdict["measured"]


def test_the_matrix_is_what_the_first_layer_does_to_values() -> None:
    model, image = small_model().double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    matrix = attention_maps.matrices(model, image)
    layer = model.stages[0].blocks[0].attention
    tokens, size = model.stages[0].embedding(image)
    q, k, v = layer.project(model.stages[0].blocks[0].norm1(tokens), size)
    torch.testing.assert_close(matrix @ v, layer.mix(q, k, v, size))


def test_replacing_the_kernel_changes_the_map_and_not_the_given_model() -> None:
    model, image = small_model(), torch.randn(1, 3, 32, 32, dtype=torch.float64)
    one, other = (attention_maps.with_kernel(model, kernel, 4.0) for kernel in ("laplacian", "gaussian"))
    assert not torch.allclose(attention_maps.matrices(one, image), attention_maps.matrices(other, image))
    assert model.stages[0].blocks[0].attention.whitening.kind == "running"


def test_the_layer_with_another_kernel_has_the_same_weights_and_options() -> None:
    layer = LaplacianAttention(32, 2, grid=4, gain="learned", qkv_bias=False, rope=False, iterations=9, qk_norm=True)
    layer.dwc = None  # as in a probe
    model = torch.nn.Sequential(layer).eval()
    with torch.no_grad():
        layer.gain.fill_(3.0)
    (changed,) = attention_maps.with_kernel(model, "gaussian", 2.0)
    assert isinstance(changed, AblationAttention)
    assert (changed.scale, changed.grid, changed.iterations, changed.rope) == (2.0, (4, 4), 9, False)
    own = {name: value for name, value in layer.state_dict().items() if not name.startswith("whitening.")}
    found = dict(changed.state_dict())
    del own["_extra_state"], found["_extra_state"]  # the settings
    torch.testing.assert_close(found, own, rtol=0, atol=0)
    assert not changed.training


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.ones(5)).item() == pytest.approx(5)
    assert effective_rank(torch.tensor([1.0, 0.0, 0.0])).item() == pytest.approx(1)


def rows(**ranks):
    return [
        {"model": name.replace("_", ", "), "image": image, "effective_rank": rank}
        for name, found in ranks.items()
        for image, rank in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("laplacian", "verdict"),
    [([5, 6, 7.1], "agrees"), ([3, 6, 5], "not confirmed at this scale"), ([1, 2, 3.1], "disagrees")],
)
def test_the_verdict_follows_the_ranks(laplacian, verdict) -> None:
    found = rows(A_laplacian=laplacian, A_gaussian=[3, 4, 5])
    assert attention_maps.judge(found, "trained").verdict == verdict
    assert attention_maps.judge(found, "random weights").verdict == "not confirmed at this scale"
