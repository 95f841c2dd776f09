"""SOFT, SOFT++, Skyformer and Nystromformer: the formulas, their exact limit, and what defines each."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from laplacianformer.attention.baselines._nystrom import KernelAttention
from laplacianformer.attention.baselines.nystromformer import _pseudo_inverse

from ..oracle import kernel_matrix, tokens
from .baselines import Points, build, matrix, points, row_normalised

SIZE, CELLS = (6, 5), (3, 3)
KERNELS = ["gaussian", "laplacian"]


def kernel(layer: Any, x: Tensor, y: Tensor) -> Tensor:
    """Of queries and keys that are divided by d^(1/4): the Gaussian of width 1, or the Laplacian of lambda = 4."""
    x, y = x / layer.head_dim**0.25, y / layer.head_dim**0.25
    return kernel_matrix(x, y, layer.kernel_name, 1.0 if layer.kernel_name == "gaussian" else 4.0)


def soft(layer: Any, given: Points) -> Tensor:
    w = kernel(layer, given.learned, given.learned)
    inverse = torch.linalg.inv(w + 0.01 * torch.eye(w.shape[-1], dtype=w.dtype))
    return kernel(layer, given.q, given.learned) @ inverse @ kernel(layer, given.learned, given.k)


def soft_plus_plus(layer: Any, given: Points) -> Tensor:
    w = kernel(layer, given.learned, given.learned)
    normalise = torch.diag_embed(w.sum(-1) ** -0.5)
    inverse = normalise @ torch.linalg.inv(w) @ normalise
    return kernel(layer, given.q, given.learned) @ inverse @ kernel(layer, given.learned, given.k)


def skyformer(layer: Any, given: Points) -> Tensor:
    """The upper right corner of the Nystrom form of the lifted matrix, 2 N x 2 N, formed in full."""
    both, landmarks = torch.cat([given.q, given.k], dim=2), torch.cat([given.qm, given.km], dim=2)
    w = kernel(layer, landmarks, landmarks)
    sides = kernel(layer, both, landmarks)
    lifted = sides @ torch.linalg.inv(w + layer.eps * torch.eye(w.shape[-1], dtype=w.dtype)) @ sides.mT
    n = given.q.shape[2]
    return lifted[..., :n, n:]


def nystromformer(layer: Any, given: Points) -> Tensor:
    left, middle, right = (
        row_normalised((x @ y.mT / layer.head_dim**0.5).exp())
        for x, y in ((given.q, given.km), (given.qm, given.km), (given.qm, given.k))
    )
    return left @ torch.linalg.pinv(middle) @ right


ORACLES = {"soft": soft, "soft++": soft_plus_plus, "skyformer": skyformer, "nystromformer": nystromformer}
KERNELISED = ["soft", "soft++", "skyformer"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"kernel": kernel, "tied": tied}) for name in KERNELISED for kernel in KERNELS for tied in (0, 1)),
        ("nystromformer", {}),
        ("nystromformer", {"tied": True, "rope": False}),
    ],
    ids=str,
)
def test_the_matrix_is_that_of_the_formula(name: str, options: dict[str, Any]) -> None:
    """With the inverse of torch.linalg, as the iteration converges; tokens far enough apart for it to exist."""
    layer, x = build(name, grid=3, iterations=40, **options), 4 * tokens(SIZE)
    given = points(layer, x, SIZE, CELLS)
    torch.testing.assert_close(matrix(layer, x, SIZE), ORACLES[name](layer, given), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_with_every_token_a_landmark_the_kernel_of_skyformer_is_exact(
    kernel_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is solved for: inv(k(X, X)) then takes back what was multiplied. Queries and keys differ."""
    layer, x = build("skyformer", tied=False, kernel=kernel_name, iterations=60), 4 * tokens(SIZE)
    given = points(layer, x, SIZE)
    wanted = kernel(layer, given.q, given.k)
    torch.testing.assert_close(matrix(layer, x, SIZE), wanted, rtol=1e-10, atol=1e-12)
    monkeypatch.setattr(layer, "is_exact", lambda size: False)
    monkeypatch.setattr(layer, "eps", 1e-9)
    torch.testing.assert_close(matrix(layer, x, SIZE), wanted, rtol=1e-5, atol=1e-6)


def test_with_every_token_a_landmark_nystromformer_is_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is solved for: A pinv(A) A = A."""
    layer, x = build("nystromformer", iterations=60), 4 * tokens(SIZE)
    wanted = matrix(build("softmax"), x, SIZE)
    torch.testing.assert_close(matrix(layer, x, SIZE), wanted)
    monkeypatch.setattr(layer, "is_exact", lambda size: False)
    torch.testing.assert_close(matrix(layer, x, SIZE), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", ["soft", "soft++"])
def test_soft_with_tied_projections_is_symmetric_and_positive(name: str, kernel_name: Any) -> None:
    """As its default is. After few Newton steps too: the iterates of a symmetric matrix are symmetric."""
    x = tokens(SIZE)
    for iterations in (4, 40):
        found = matrix(build(name, grid=3, kernel=kernel_name, iterations=iterations), x, SIZE)
        torch.testing.assert_close(found, found.mT, rtol=1e-9, atol=1e-12)
        assert torch.linalg.eigvalsh(found).min() > -1e-9
    untied = matrix(build(name, grid=3, kernel=kernel_name, tied=False), x, SIZE)
    assert (untied - untied.mT).abs().max() > 1e-2


def test_the_normalisation_of_soft_plus_plus_lowers_its_norm() -> None:
    for scale in (0.5, 1, 4):
        x = scale * tokens(SIZE)
        soft, normalised = (matrix(build(name, grid=3, rope=False), x, SIZE) for name in ("soft", "soft++"))
        assert (torch.linalg.matrix_norm(normalised, 2) < torch.linalg.matrix_norm(soft, 2)).all()


@pytest.mark.parametrize("name", ["soft", "soft++"])
def test_landmarks_of_soft_do_not_shrink_with_the_queries(name: str) -> None:
    """LayerNorm gives them their length: with shorter queries they stay as they are."""
    layer, x = build(name, grid=3, rope=False, qkv_bias=False), 4 * tokens(SIZE)
    q, k, _ = layer.project(x, SIZE)
    long, short = (layer.points(factor * q, factor * k, SIZE, None) for factor in (100.0, 1.0))
    torch.testing.assert_close(long, short, rtol=0.05, atol=0.05)
    assert long.std() > 0.5


def test_the_gradient_of_soft_is_that_of_the_inverse_and_of_soft_plus_plus_that_of_the_steps() -> None:
    """-Y' G Y' with the Y of the steps that ran, also where they have not converged; and finite differences."""
    torch.manual_seed(0)
    x, grad = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(2, 5, 5, dtype=torch.float64)
    w = kernel_matrix(x, x, "gaussian", 2.0).requires_grad_()
    inverse = build("soft", iterations=3).inverse(w)
    (found,) = torch.autograd.grad(inverse, w, grad)
    torch.testing.assert_close(found, -inverse.mT @ grad @ inverse.mT)
    assert (w @ inverse - torch.eye(5, dtype=torch.float64)).abs().max() > 0.1
    assert torch.autograd.gradcheck(build("soft++", iterations=3).inverse, w, fast_mode=True)


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_skyformer_never_exceeds_the_lifted_kernel(kernel_name: Any) -> None:
    """What a Nystrom form leaves of a positive definite matrix is positive semi-definite: of all 2 N points here."""
    layer, x = build("skyformer", grid=3, kernel=kernel_name, iterations=40), 4 * tokens(SIZE)
    q, k, _ = layer.project(x, SIZE)
    landmarks = layer.points(q, k, SIZE, None)
    assert landmarks.shape[-2] == 2 * 9
    both = torch.cat([layer.rotate(q, SIZE), layer.rotate(k, SIZE)], dim=2)
    sides = layer.kernel(both, landmarks)
    rest = layer.kernel(both, both) - sides @ layer.inverse(layer.kernel(landmarks, landmarks)) @ sides.mT
    assert torch.linalg.eigvalsh(rest).min() > -1e-9
    assert torch.linalg.eigvalsh(rest).max() > 0.1


@pytest.mark.parametrize(("spread", "residual"), [(1.0, 1e-12), (0.01, 0.25)])
def test_the_default_steps_of_skyformer_invert(spread: float, residual: float) -> None:
    """98 landmarks; where they are nearly equal, eps alone keeps the matrix from being singular (condition 981)."""
    torch.manual_seed(0)
    x = spread * torch.randn(2, 98, 16, dtype=torch.float64)
    w = kernel_matrix(x, x, "gaussian", 2.0)
    identity = torch.eye(98, dtype=torch.float64)
    rest = (w + 0.1 * identity) @ build("skyformer").inverse(w) - identity
    assert torch.linalg.matrix_norm(rest, 2).max() < residual


@pytest.mark.parametrize("size", [(6, 5), (2, 9)], ids=str)
def test_rows_of_nystromformer_sum_to_one_at_convergence(size: tuple[int, int]) -> None:
    found = matrix(build("nystromformer", grid=3, iterations=30), 4 * tokens(size), size)
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]), rtol=1e-8, atol=0)
    assert (found < 0).any()


def test_each_step_of_the_pseudo_inverse_cubes_its_residual() -> None:
    torch.manual_seed(0)
    a = (torch.eye(6, dtype=torch.float64) * 3 + torch.rand(2, 6, 6, dtype=torch.float64)).softmax(-1)
    identity = torch.eye(6, dtype=torch.float64)
    residuals = [torch.linalg.matrix_norm(identity - a @ _pseudo_inverse(a, steps), 2) for steps in range(9)]
    for before, after in pairwise(residuals):
        assert (after <= before**3 + 1e-12).all()
    torch.testing.assert_close(_pseudo_inverse(a, 8), torch.linalg.inv(a))


def test_the_pseudo_inverse_of_a_singular_matrix_is_that_of_moore_and_penrose() -> None:
    a = torch.full((1, 4, 4), 0.25, dtype=torch.float64)
    torch.testing.assert_close(_pseudo_inverse(a, 6), torch.linalg.pinv(a))


@pytest.mark.parametrize("size", [(6, 5), (3, 2)], ids=str)
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", KERNELISED)
def test_averaged_equal_tokens_give_the_mean_of_the_values(name: str, kernel_name: Any, size: tuple[int, int]) -> None:
    """Up to Skyformer's eps; not averaged, the same matrix times N, and for SOFT++ N / m. SOFT's learned landmarks are
    not the tokens: its weights are equal, and less than 1 / N."""
    n, x = size[0] * size[1], tokens(size)[:, :1].expand(-1, size[0] * size[1], -1)
    options = {"grid": 3, "kernel": kernel_name, "rope": False, "tied": True}
    found = matrix(build(name, averaged=True, **options), x, size)
    torch.testing.assert_close(found, found[..., :1, :1].expand_as(found))
    if name == "skyformer":
        torch.testing.assert_close(found, torch.full_like(found, 1 / n), rtol=0.02, atol=0)
    else:
        assert (found < 1 / n).all()
    summed = matrix(build(name, **options), x, size)
    factor = n / min(n, 9) if name == "soft++" else n
    torch.testing.assert_close(summed, factor * found)


def test_an_inverse_must_be_defined() -> None:
    with pytest.raises(TypeError, match="KernelAttention must define inverse"):
        KernelAttention(8, 2, grid=1, iterations=1)(tokens((2, 2), dim=8, dtype=torch.float32), (2, 2))
