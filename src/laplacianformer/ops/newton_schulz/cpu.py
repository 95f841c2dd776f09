"""newton_schulz is matrix products, which torch runs at the machine's speed: on CPUs, the reference is the backend."""

from laplacianformer.ops.cpu_extension import check as check
from laplacianformer.ops.newton_schulz.reference import backward as backward
from laplacianformer.ops.newton_schulz.reference import forward as forward
