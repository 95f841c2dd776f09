"""What the arms of kernel-convergence begin and end with."""

import pytest
import torch
from safetensors.torch import save_file

from laplacianformer.experiments.branches import Branch, _probe, branch_of
from laplacianformer.experiments.kernel_convergence import VARIANTS
from laplacianformer.experiments.sweep import Training
from laplacianformer.experiments.trainings import CLASSIFIER, PROBE, placed

pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def starts() -> dict[str, Branch]:
    """In the classifier, whose tokens are patches of images, as in the paper."""
    return starts_in(CLASSIFIER)


def starts_in(recipe: str) -> dict[str, Branch]:
    return {name: branch_of(Training(recipe, {}, placed(changes, recipe), 0)) for name, changes in VARIANTS.items()}


def test_the_swap_of_the_kernel_acts_where_the_paper_makes_it(starts) -> None:
    """The Gaussian kernel of SOFT++ is nearly the identity among its landmarks, the Laplacian is less so."""
    laplacian, gaussian = starts["SOFT++, laplacian"], starts["SOFT++, gaussian"]
    assert gaussian.off_diagonal < 0.005
    assert laplacian.off_diagonal > 5 * gaussian.off_diagonal
    assert laplacian.fraction > 5 * gaussian.fraction


def test_attention_of_ours_starts_as_large_as_the_values_and_depends_on_the_token(starts) -> None:
    for kernel in ("laplacian", "gaussian"):
        assert 0.3 < starts[f"LaplacianFormer, {kernel}"].fraction < 1.2
    assert len(set(starts.values())) == len(VARIANTS)


def test_the_arms_of_the_probe_do_not_start_alike() -> None:
    found = starts_in(PROBE)
    assert len(set(found.values())) == len(VARIANTS)
    for kernel in ("laplacian", "gaussian"):  # here the swap leaves SOFT++ as dense as it was
        assert 0.25 < found[f"SOFT++, {kernel}"].off_diagonal < 0.4
    assert found["LaplacianFormer, gaussian"].off_diagonal > 2 * found["LaplacianFormer, laplacian"].off_diagonal
    assert all(0 < start.fraction < 2 for start in found.values())


def test_after_training_the_branch_is_that_of_the_weights(tmp_path) -> None:
    """Weights whose values are twice as large, and whose landmarks are all equal."""
    run = Training(PROBE, {}, (), 0)
    before, tensors = branch_of(run), dict(_probe(run)[0].state_dict())
    for name in tensors:
        if name.endswith("attention.qkv.weight"):
            tensors[name] = torch.cat([torch.zeros(128, 64), 2 * tensors[name][128:]])
    save_file(tensors, tmp_path / "model.safetensors")
    after = branch_of(run, tmp_path / "model.safetensors")
    assert after.off_diagonal == pytest.approx(1, abs=1e-6)
    assert before.off_diagonal < 0.5
    assert after.fraction < 1e-3 < before.fraction
