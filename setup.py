"""Builds the C++ kernels of the `cpu` backend where a compiler can, and installs without them where it can't.

LAPLACIANFORMER_KERNELS=1 makes a build without them fail, LAPLACIANFORMER_KERNELS=0 builds a package of Python alone.
Everything else about the package is in pyproject.toml.
"""

import os
import shlex
import shutil
import sys
from glob import glob
from pathlib import Path

from setuptools import setup

try:
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    sys.exit(f"laplacianformer is built against torch, which can't be imported: {error}")

# Beside the extension, for `ops.backends()` to say why there is none. Absent after a successful build.
FAILURE = "build_failure.txt"
# The oldest torch that the binary runs on.
OLDEST_TORCH = 0x020A000000000000
# Hidden symbols, as torch's stable headers have them: nothing is called from outside but what is registered.
COMPILE = ["-O3", "-std=c++17", "-fvisibility=hidden", f"-DTORCH_TARGET_VERSION={OLDEST_TORCH:#018x}"]
KERNELS = os.environ.get("LAPLACIANFORMER_KERNELS", "")
if KERNELS not in ("", "0", "1"):
    sys.exit(f"LAPLACIANFORMER_KERNELS is {KERNELS!r}, expected 0, 1 or nothing")


class OptionalBuild(BuildExtension):
    """A build that may fail: it says why and leaves the reason where the package finds it.

    pip shows what a build prints only with -v, so the package says it again when it is first used.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = False  # What is newer than all it depends on is not built again.

    def run(self) -> None:
        path = Path(self.get_ext_fullpath(self.extensions[0].name))
        failure = path.parent / FAILURE
        failure.unlink(missing_ok=True)
        compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
        try:
            if os.name == "posix" and shutil.which(compiler) is None:
                raise RuntimeError(f"no C++ compiler, {compiler!r} is not found")
            super().run()
        except Exception as error:
            if KERNELS == "1":
                raise
            path.unlink(missing_ok=True)  # An older build is not what this source says.
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            path.parent.mkdir(parents=True, exist_ok=True)
            failure.write_text(f"{reason}\n")
            print(
                f"laplacianformer: the C++ kernels were not built, the package uses plain PyTorch instead: {reason}",
                file=sys.stderr,
            )


if KERNELS == "0":
    setup()
else:
    setup(
        ext_modules=[
            CppExtension(
                "laplacianformer._cpu",
                sources=sorted(glob("csrc/*/*.cpp")),
                depends=[*sorted(glob("csrc/*/*.h")), "setup.py"],
                include_dirs=[str(Path(__file__).parent.resolve() / "csrc")],
                py_limited_api=True,
                extra_compile_args=COMPILE,
            )
        ],
        cmdclass={"build_ext": OptionalBuild},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
