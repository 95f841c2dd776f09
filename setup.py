"""Builds the C++ kernels, for torch and onnxruntime, where a compiler can, and installs without them where it can't.

LAPLACIANFORMER_KERNELS=1 makes a build without them fail, LAPLACIANFORMER_KERNELS=0 builds a package of Python alone.
Everything else about the package is in pyproject.toml.
"""

import os
import shlex
import shutil
import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

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
if "-g" not in os.environ.get("CFLAGS", "").split():
    COMPILE.append("-g0")  # Python's own flags may ask for debug information, ten times the size of the code.
FOLDER = Path(__file__).parent.resolve() / "csrc"
LEVELS, OPS, ONNX = (sorted(glob(f"csrc/{folder}/*.cpp")) for folder in ("levels", "ops", "onnx"))
# Of the library for onnxruntime, which holds no torch: ops/ find in csrc/onnx/stand_in what they use of it. What is
# there for training or for Python alone is left out.
ONNX_OPS = [
    f"csrc/ops/{name}.cpp"
    for name in (
        "column_variance",
        "landmarks",
        "laplacian_attention",
        "laplacian_kernel",
        "laplacian_matmul",
        "level_choice",
        "newton_schulz",
        "pair_task",
        "rotate",
        "tensors",
        "token_mask",
    )
]
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
        paths = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        failure = paths[0].parent / FAILURE
        failure.unlink(missing_ok=True)
        compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
        try:
            if os.name == "posix" and shutil.which(compiler) is None:
                raise RuntimeError(f"no C++ compiler, {compiler!r} is not found")
            super().run()
        except Exception as error:
            if KERNELS == "1":
                raise
            for path in paths:
                path.unlink(missing_ok=True)  # An older build is not what this source says.
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            failure.parent.mkdir(parents=True, exist_ok=True)
            failure.write_text(f"{reason}\n")
            print(
                f"laplacianformer: the C++ kernels were not built, the package uses plain PyTorch instead: {reason}",
                file=sys.stderr,
            )

    def build_extension(self, extension: Extension) -> None:
        if extension.name == self.extensions[0].name:
            super().build_extension(extension)
            return
        # The instruction sets take most of the time, and the extension with torch has them compiled.
        compiled = self.compiler.object_filenames(LEVELS, output_dir=self.build_temp)
        if all(map(os.path.exists, compiled)):
            extension.extra_objects = compiled
        else:
            extension.sources += LEVELS
        folder, self.build_temp = self.build_temp, os.path.join(self.build_temp, "onnx")
        super().build_extension(extension)
        self.build_temp = folder


if KERNELS == "0":
    setup()
else:
    headers = [*glob("csrc/*/*.h"), *glob("csrc/onnx/stand_in/**/*.h", recursive=True)]
    depends = [*sorted(headers), "setup.py"]
    setup(
        ext_modules=[
            CppExtension(
                "laplacianformer._cpu",
                sources=[*LEVELS, *OPS],
                depends=depends,
                include_dirs=[str(FOLDER)],
                py_limited_api=True,
                extra_compile_args=COMPILE,
            ),
            Extension(
                "laplacianformer._onnx",
                sources=[*ONNX, *ONNX_OPS],
                depends=[*depends, *LEVELS],
                include_dirs=[str(FOLDER / "onnx" / "stand_in"), str(FOLDER)],
                py_limited_api=True,
                extra_compile_args=COMPILE,
            ),
        ],
        cmdclass={"build_ext": OptionalBuild},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
