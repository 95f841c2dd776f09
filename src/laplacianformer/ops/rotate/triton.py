"""rotate is a few elementwise operations, which torch.compile fuses: on GPUs, the reference is the backend."""

from laplacianformer.ops._triton_support import check as check
from laplacianformer.ops.rotate.reference import forward as forward
