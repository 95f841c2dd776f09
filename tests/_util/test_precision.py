"""bfloat16 where it can be used, and what is said where it can't."""

import pytest
import torch

from laplacianformer._util import precision
from laplacianformer._util.errors import InputError


def test_a_cpu_that_dies_in_bfloat16_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_BFLOAT16_TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(InputError, match=r"ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before you start, or float32"):
        precision.try_bfloat16_on_cpu("float32")
    monkeypatch.setattr(precision, "_BFLOAT16_TRIAL", "raise SystemError('no such number')")
    with pytest.raises(InputError, match=r"no such number\): set run.precision=float32"):
        precision.try_bfloat16_on_cpu("run.precision=float32")


def test_only_cpus_without_amx_are_not_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_BFLOAT16_TRIAL", "raise SystemError('no such number')")
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": False}, raising=False)
    with precision.computing_in("bfloat16", cpu):
        assert torch.nn.Linear(8, 8)(torch.randn(2, 8)).dtype == torch.bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    with pytest.raises(InputError, match=r"no such number\): set --precision float32"):
        precision.computing_in("bfloat16", cpu)
    with precision.computing_in("float32", cpu):
        assert torch.nn.Linear(8, 8)(torch.randn(2, 8)).dtype == torch.float32
