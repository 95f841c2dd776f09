"""Laplacian attention: the definition of the package, in the notation of docs/paper.md.

    C = k(Q, Km)   B = k(Km, K)   W = k(Km, Km) + eps I   L = (m/N) inv(W) (B V)
    Z = (1 + gain (C - rowmean(C)) D) / m                  out = Z L + DWC(V)

The whitening folds away: Z L = C (gain/m P D L) + 1 mean_rows(L), with P = I - 11'/m, so the layer is two
kernel products and one m x m solve. All of it is computed in float32 (float64 for float64 inputs).

Shape suffixes: b batch, h heads, n tokens, m landmarks, d head width, c channels (h * d).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from laplacianformer import ops
from laplacianformer.attention.grid import GridAttention, check_count, in_float32
from laplacianformer.attention.landmarks import Size, known, pool
from laplacianformer.attention.rope import cell_rotation
from laplacianformer.attention.whitening import Kind, Whitening
from laplacianformer.ops import branch, check
from laplacianformer.ops.precision import without_autocast

OTHER_KERNELS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "gaussian": ops.gaussian_kernel,
    "matern": ops.matern_kernel,
    "cosine": ops.cosine_kernel,
    "polynomial": ops.polynomial_kernel,
}
KERNELS = ("laplacian", *OTHER_KERNELS)
GRAMS = ("keys", "cross")
SOLVERS = ("newton_schulz", "conjugate_gradient", "cholesky")
LANDMARKS = ("pool", "conv")


class Factors(NamedTuple):
    """What the layer computed from one input, for looking inside. b batch, h heads, n tokens, m landmarks."""

    c: Tensor  # (B, heads, N, m): kernel of queries and landmarks
    w: Tensor  # (B, heads, m, m): kernel among landmarks, without eps
    landmark_values: Tensor  # (B, heads, m, d): L
    z: Tensor  # (B, heads, N, m): the injective map
    dense: Tensor | None  # (B, heads, N, N): the attention matrix, the global branch being dense @ V


class Placed(NamedTuple):
    """Tokens and landmarks at their places; with a rotation, queries and keys are still to be turned by it."""

    q: Tensor
    k: Tensor
    qm: Tensor
    km: Tensor
    rotation: tuple[Tensor, Tensor] | None


class LaplacianAttention(GridAttention):
    """Linear attention with the kernel exp(-|q - k|_1 / scale). Called as `attention(x, (H, W))`.

    Args:
        dim: channels.
        num_heads: heads; 32 channels each in every named model.
        scale: lambda of the Laplacian kernel, or the scale of another.
        grid: landmarks are the keys averaged over grid x grid cells, never finer than the tokens:
            linear cost at every size.
        ratio: one landmark for ratio x ratio tokens instead (with grid=None): the paper's form, whose cost grows
            quadratically with the tokens. With neither, every token is a landmark: the exact form.
        kernel: "laplacian"; to compare with, "gaussian", "matern", "cosine" or "polynomial".
        gram: W among the landmark keys ("keys"), or between landmark queries and keys ("cross", for comparison).
        solver: "newton_schulz", "conjugate_gradient" or "cholesky" (exact; a ridge solve with gram="cross").
        iterations: of the solver.
        eps: added to the diagonal of W.
        whitening: "running", "instance", "full" or None; see `Whitening`.
        sync: whiten by the batches of all training processes together; see `Whitening`.
        gain: weight of the whitened part; "learned" makes it one parameter a head, from 1.
        landmarks: "pool", or "conv": a learned 3 x 3 depth-wise filter before the averaging.
        **shared: rope, tied, qkv_bias, proj_drop; see `GridAttention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        scale: float = 4.0,
        grid: int | None = 7,
        ratio: int | None = None,
        kernel: Literal["laplacian", "gaussian", "matern", "cosine", "polynomial"] = "laplacian",
        gram: Literal["keys", "cross"] = "keys",
        solver: Literal["newton_schulz", "conjugate_gradient", "cholesky"] = "newton_schulz",
        iterations: int = 6,
        eps: float = 1e-2,
        whitening: Kind | None = "running",
        sync: bool = False,
        gain: float | Literal["learned"] = 1.0,
        landmarks: Literal["pool", "conv"] = "pool",
        **shared: Any,
    ) -> None:
        super().__init__(dim, num_heads, **shared)
        name = type(self).__name__
        check.positive(name, scale=scale, eps=eps)
        check.iterations(name, iterations)
        check.choice(name, KERNELS, kernel=kernel)
        check.choice(name, GRAMS, gram=gram)
        check.choice(name, SOLVERS, solver=solver)
        check.choice(name, LANDMARKS, landmarks=landmarks)
        if grid is not None and ratio is not None:
            raise ValueError(f"{name}: give grid or ratio, not both: got grid={grid}, ratio={ratio} (pass grid=None)")
        check_count(self, **{key: value for key, value in (("grid", grid), ("ratio", ratio)) if value is not None})

        self.scale, self.grid, self.ratio = float(scale), grid, ratio
        self.kernel_name, self.gram, self.solver = kernel, gram, solver
        self.iterations, self.eps = iterations, float(eps)
        self.whitening = Whitening(whitening, num_heads, (grid or 7, grid or 7), sync=sync)
        self.gain: nn.Parameter | float
        if gain == "learned":
            self.gain = nn.Parameter(torch.ones(num_heads))
        else:
            check.number(name, gain=gain)
            self.gain = float(gain)
        self.landmark_filter = _identity_filter(dim) if landmarks == "conv" else None

    def mix(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        with without_autocast(q_bhnd.device):
            fits = q_bhnd.shape[1:3] == (self.num_heads, math.prod(size))
            together = fits and branch.can_run(q_bhnd, k_bhnd, v_bhnd, self.gain) and self.is_plain(size)
            training = self.whitening.needs_kernel()
            if together and not training and not branch.wants_gradient(q_bhnd, k_bhnd, v_bhnd, self.gain):
                return self.mix_in_evaluation(q_bhnd, k_bhnd, v_bhnd, size)
            q_bhnd, k_bhnd, v_bhnd = in_float32(q_bhnd, k_bhnd, v_bhnd)
            if together and training:
                return self.mix_in_training(q_bhnd, k_bhnd, v_bhnd, size)
            return self.mix_one_by_one(q_bhnd, k_bhnd, v_bhnd, size=size)

    def mix_one_by_one(
        self,
        q_bhnd: Tensor,
        k_bhnd: Tensor,
        v_bhnd: Tensor,
        gain: Tensor | None = None,
        *,
        size: Size,
        again: bool = False,
    ) -> Tensor:
        """By the ops. `again`: as a training step had it, with its gain, whatever has become of the layer since."""
        placed = self.place(q_bhnd, k_bhnd, size)
        values_bhmd = self.landmark_values(placed, v_bhnd, size)
        if again or self.whitening.needs_kernel():
            c_bhnm = self.kernel(placed.q, placed.km, x_rotation=placed.rotation)
            factor = self.whitening.factor(c_bhnm, self.cells(size), update=not again, of_batch=again)
            out_bhnd = c_bhnm @ self.fold(values_bhmd, factor, gain)
        else:
            folded_bhmd = self.fold(values_bhmd, self.whitening.factor(None, self.cells(size)), gain)
            out_bhnd = self.kernel_matmul(placed.q, placed.km, folded_bhmd, x_rotation=placed.rotation)
        return out_bhnd + values_bhmd.mean(-2, keepdim=True)

    def is_plain(self, size: Size) -> bool:
        """Whether `mix` is what `ops.branch` computes: the default form, whatever its numbers."""
        default = (self.kernel_name, self.gram, self.solver) == ("laplacian", "keys", "newton_schulz")
        whitened = self.whitening.kind in ("running", None) and not (self.whitening.training and self.whitening.sync)
        few = math.prod(self.cells(size)) <= branch.LARGEST
        return default and whitened and few and self.landmark_filter is None

    def mix_in_evaluation(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        variance = self.whitening.evaluated_variance(self.cells(size)) if self.whitening.kind else None
        return branch.evaluated(q_bhnd, k_bhnd, v_bhnd, variance, self.branch_settings(q_bhnd, size))

    def mix_in_training(self, q_bhnd: Tensor, k_bhnd: Tensor, v_bhnd: Tensor, size: Size) -> Tensor:
        one_by_one = partial(self.mix_one_by_one, size=size, again=True)
        out_bhnd, variance = branch.trained(q_bhnd, k_bhnd, v_bhnd, self.branch_settings(q_bhnd, size), one_by_one)
        self.whitening.update(variance, self.cells(size))
        return out_bhnd

    def branch_settings(self, q_bhnd: Tensor, size: Size) -> branch.Settings:
        cells = self.cells(size)
        return branch.Settings(
            rotation=cell_rotation(q_bhnd, size, size) if self.rope else None,
            cell_rotation=cell_rotation(q_bhnd, size, cells) if self.rope else None,
            gain=self.gain,
            size=size,
            cells=cells,
            scale=self.scale,
            eps=self.eps,
            variance_eps=self.whitening.eps,
            iterations=self.iterations,
        )

    def cells(self, size: Size) -> Size:
        """The grid of landmarks for a grid of tokens."""
        if self.grid is not None:
            return min(size[0], self.grid), min(size[1], self.grid)
        ratio = self.ratio or 1
        return -(-size[0] // ratio), -(-size[1] // ratio)

    def solves(self, size: Size) -> bool:
        """Whether there is anything to solve: not where every token is a landmark."""
        return not (known(size) and self.cells(size) == tuple(size) and self.landmark_filter is None)

    def place(self, q_bhnd: Tensor, k_bhnd: Tensor, size: Size) -> Placed:
        """Queries, keys, landmark queries and landmark keys, rotated to their places.

        Landmarks are averaged first and rotated at the centres of their cells: averaging rotated vectors
        would wipe out the high frequencies. Queries and keys are left to the Laplacian ops, which can turn
        rows as they read them.
        """
        cells, cross = self.cells(size), self.gram == "cross"
        if not self.solves(size):
            q, k = self.rotate(q_bhnd, size, size), self.rotate(k_bhnd, size, size)
            return Placed(q, k, q if cross else k, k, None)
        km = self.rotate(self.pool_heads(k_bhnd, size), size, cells)
        qm = self.rotate(self.pool_heads(q_bhnd, size), size, cells) if cross else km
        if self.rope and self.kernel_name == "laplacian":
            return Placed(q_bhnd, k_bhnd, qm, km, cell_rotation(q_bhnd, size, size))
        return Placed(self.rotate(q_bhnd, size, size), self.rotate(k_bhnd, size, size), qm, km, None)

    def pool_heads(self, x_bhnd: Tensor, size: Size) -> Tensor:
        x_bnc = x_bhnd.transpose(1, 2).flatten(2)
        if self.landmark_filter is not None:
            grid_bchw = x_bnc.unflatten(1, size).permute(0, 3, 1, 2)
            filtered = self.landmark_filter(grid_bchw.to(self.landmark_filter.weight.dtype))
            x_bnc = filtered.permute(0, 2, 3, 1).flatten(1, 2).to(x_bnc.dtype)
        return pool(x_bnc, size, self.cells(size)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)

    def landmark_values(self, placed: Placed, v_bhnd: Tensor, size: Size) -> Tensor:
        """L = (m/N) inv(W) (B V). Where the landmarks are the keys, B = W and L = V: nothing to solve."""
        _, k_bhnd, qm_bhmd, km_bhmd, rotation = placed
        if km_bhmd is k_bhnd:
            return v_bhnd
        w_bhmm = self.kernel(qm_bhmd, km_bhmd)
        share = km_bhmd.shape[-2] / k_bhnd.shape[-2]
        summed_bhmd = self.kernel_matmul(qm_bhmd, k_bhnd, v_bhnd, y_rotation=rotation)
        solved_bhmd = self.solve(w_bhmm, share * summed_bhmd)
        if known(size) or self.landmark_filter is not None:
            return solved_bhmd
        # One exported graph for every size: where each cell is one token, pooling the values is the identity.
        spare = torch.full((), k_bhnd.shape[-2] - km_bhmd.shape[-2], device=v_bhnd.device)
        return torch.where(spare == 0, self.pool_heads(v_bhnd, size), solved_bhmd)

    def solve(self, w_bhmm: Tensor, rhs_bhmd: Tensor) -> Tensor:
        symmetric = self.gram == "keys"
        if self.solver == "newton_schulz":
            start = self.newton_schulz_start()
            return ops.newton_schulz(w_bhmm, self.iterations, self.eps, start=start) @ rhs_bhmd
        if self.solver == "conjugate_gradient":
            if symmetric:
                return ops.conjugate_gradient(w_bhmm, rhs_bhmd, self.iterations, self.eps)
            return ops.conjugate_gradient(w_bhmm.mT @ w_bhmm, w_bhmm.mT @ rhs_bhmd, self.iterations, self.eps)
        exact = ops.cholesky_solve if symmetric else ops.ridge_solve
        return exact(w_bhmm, rhs_bhmd, self.eps)

    def newton_schulz_start(self) -> Literal["identity", "transpose"]:
        """The faster start where W is symmetric positive definite."""
        return "identity" if self.gram == "keys" else "transpose"

    def fold(self, values_bhmd: Tensor, factor: Tensor | None, gain: Tensor | None = None) -> Tensor:
        """gain/m P D L, with this gain in place of the layer's if given."""
        whitened = self.whitening.multiply(factor, values_bhmd)
        return self.head_gain(gain) / values_bhmd.shape[-2] * (whitened - whitened.mean(-2, keepdim=True))

    def injective_map(self, c_bhnm: Tensor, factor: Tensor | None) -> Tensor:
        """Z = (1 + gain (C - rowmean(C)) D) / m: the form that `fold` avoids."""
        centred = c_bhnm - c_bhnm.mean(-1, keepdim=True)
        return (1 + self.head_gain() * self.whitening.multiply(factor, centred.mT).mT) / c_bhnm.shape[-1]

    def head_gain(self, gain: Tensor | None = None) -> Tensor | float:
        given = self.gain if gain is None else gain
        return given[:, None, None] if isinstance(given, Tensor) else given

    def kernel(self, x: Tensor, y: Tensor, **rotations: Any) -> Tensor:
        if self.kernel_name == "laplacian":
            return ops.laplacian_kernel(x, y, self.scale, **rotations)
        return OTHER_KERNELS[self.kernel_name](x, y, self.scale)  # `place` has rotated them

    def kernel_matmul(self, x: Tensor, y: Tensor, values: Tensor, **rotations: Any) -> Tensor:
        if self.kernel_name == "laplacian":
            return ops.laplacian_matmul(x, y, values, self.scale, **rotations)
        return self.kernel(x, y) @ values

    @torch.no_grad()
    def factors(self, x: Tensor, size: Size, *, dense: bool = False) -> Factors:
        """C, W, L and Z of these tokens, and for `dense` the N x N attention matrix (O(N^2) memory).

        Nothing is updated: the running variance is read, not changed, also in training mode.
        """
        projected = self.project(x, size)
        with without_autocast(x.device):
            q, k, v = in_float32(*projected)
            placed = self.place(q, k, size)
            c = self.kernel(placed.q, placed.km, x_rotation=placed.rotation)
            w = self.kernel(placed.qm, placed.km)
            z = self.injective_map(c, self.whitening.factor(c, self.cells(size), update=False))
            matrix = None
            if dense:
                identity = torch.eye(v.shape[-2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
                matrix = z @ self.landmark_values(placed, identity, size)
            return Factors(c, w, self.landmark_values(placed, v, size), z, matrix)

    def extra_repr(self) -> str:
        size = f"grid={self.grid}" if self.grid else f"ratio={self.ratio}" if self.ratio else "exact"
        return f"{self.kernel_name}, scale={self.scale}, {size}, gram={self.gram}, {self.solver} x {self.iterations}"


def _identity_filter(dim: int) -> nn.Conv2d:
    """A depth-wise 3 x 3 convolution that starts as the identity."""
    convolution = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)
    nn.init.dirac_(convolution.weight, groups=dim)
    return convolution
