"""The inverse by Newton-Schulz steps."""

from laplacianformer.ops.newton_schulz.op import newton_schulz, newton_schulz_residuals

__all__ = ["newton_schulz", "newton_schulz_residuals"]
