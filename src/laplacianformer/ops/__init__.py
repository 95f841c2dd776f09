"""The mathematics: each op with its reference beside its fast twins, and the choice between them."""

from laplacianformer.ops.backend import backends as backends
from laplacianformer.ops.backend import use_backend as use_backend
from laplacianformer.ops.column_variance import column_variance as column_variance
from laplacianformer.ops.gaussian_kernel import gaussian_kernel as gaussian_kernel
from laplacianformer.ops.inverse_sqrt import inverse_sqrt as inverse_sqrt
from laplacianformer.ops.laplacian_kernel import laplacian_kernel as laplacian_kernel
from laplacianformer.ops.laplacian_matmul import laplacian_matmul as laplacian_matmul
from laplacianformer.ops.newton_schulz import newton_schulz as newton_schulz
from laplacianformer.ops.newton_schulz import newton_schulz_residuals as newton_schulz_residuals
from laplacianformer.ops.other_kernels import cosine_kernel as cosine_kernel
from laplacianformer.ops.other_kernels import matern_kernel as matern_kernel
from laplacianformer.ops.other_kernels import polynomial_kernel as polynomial_kernel
from laplacianformer.ops.rotate import rotate as rotate
from laplacianformer.ops.solvers import cholesky_solve as cholesky_solve
from laplacianformer.ops.solvers import conjugate_gradient as conjugate_gradient
from laplacianformer.ops.solvers import ridge_solve as ridge_solve
