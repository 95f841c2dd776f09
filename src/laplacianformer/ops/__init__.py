"""The mathematics: each op with its reference beside its fast twins, and the choice between them.

Every op takes any leading batch dimensions that its docstring shows, any floating-point dtype and any layout, is
differentiable, and works under torch.compile, torch.export, autocast and vmap.
"""

from laplacianformer.ops._backend import backends, use_backend
from laplacianformer.ops.column_variance import column_variance
from laplacianformer.ops.gaussian_kernel import gaussian_kernel
from laplacianformer.ops.gelu import gelu
from laplacianformer.ops.inverse_sqrt import inverse_sqrt
from laplacianformer.ops.laplacian_attention import laplacian_attention
from laplacianformer.ops.laplacian_kernel import laplacian_kernel
from laplacianformer.ops.laplacian_matmul import laplacian_matmul
from laplacianformer.ops.linear import linear
from laplacianformer.ops.mlp import mlp
from laplacianformer.ops.newton_schulz import newton_schulz, newton_schulz_residuals
from laplacianformer.ops.other_kernels import cosine_kernel, matern_kernel, polynomial_kernel
from laplacianformer.ops.rotate import rotate
from laplacianformer.ops.solvers import cholesky_solve, conjugate_gradient, ridge_solve

__all__ = [
    "backends",
    "cholesky_solve",
    "column_variance",
    "conjugate_gradient",
    "cosine_kernel",
    "gaussian_kernel",
    "gelu",
    "inverse_sqrt",
    "laplacian_attention",
    "laplacian_kernel",
    "laplacian_matmul",
    "linear",
    "matern_kernel",
    "mlp",
    "newton_schulz",
    "newton_schulz_residuals",
    "polynomial_kernel",
    "ridge_solve",
    "rotate",
    "use_backend",
]
