import os

# Some virtual machines announce AMX and then die with SIGILL in a bfloat16 product; torch must not be imported yet.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
