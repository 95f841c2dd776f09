"""The ways to run a model on a CPU, in interleaved rounds: time, peak memory, and file size.

    python benchmarks/export.py --files runs/export                    nano and tiny at 224 pixels, 1 and 2 threads
    python benchmarks/export.py --models laplacianformer_nano --size 64 --threads 1 --seconds 0.2       to try it

    python benchmarks/export.py --files runs/export --models laplacianformer_tiny --ways 'aot_inductor, int8'

One image at a time, random weights; bfloat16, int8 and kernels as `--precision` and `--kernels` have them. Writes
results/benchmarks/export/speed.csv. The peak memory is that of the first call after the model is loaded and compiled,
beyond what the process had before. Compiling takes minutes: with `--files`, compiled models are kept there and used
again.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from comparing import RESULTS, compare, parser_of, progress, show
from safetensors.torch import save_model
from torch import nn

from laplacianformer._util.measuring import Call, in_child
from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, write_rows

FILES = {
    "eager": "model.safetensors",
    "eager, bfloat16": "model.safetensors",
    "torch.compile": "model.safetensors",
    "aot_inductor": "one-size.pt2",
    "aot_inductor, bfloat16": "bfloat16.pt2",
    "aot_inductor, int8": "int8.pt2",
    "aot_inductor, any size": "any-size.pt2",
    "onnxruntime": "model.onnx",
    "onnxruntime, kernels": "kernels.onnx",
    "onnxruntime, int8": "int8.onnx",
    "onnxruntime, int8, kernels": "int8-kernels.onnx",
}
ANY_SIZE = "aot_inductor, any size"  # only for nano: compiling the others takes long and shows the same


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "export")
    names = ["laplacianformer_nano", "laplacianformer_tiny"]
    parser.add_argument("--models", nargs="+", default=names, metavar="NAME", help="(default: nano and tiny)")
    parser.add_argument("--ways", nargs="+", choices=[*FILES], metavar="NAME", help="beside eager (default: all)")
    parser.add_argument("--size", type=int, default=224, metavar="PIXELS", help="image size (default: %(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time per function (default: %(default)s)")
    parser.add_argument("--files", type=Path, metavar="DIR", help="folder that keeps the exports (default: none)")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with nullcontext(arguments.files) if arguments.files else tempfile.TemporaryDirectory() as kept:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(kept).resolve() / "compiled"))
        for name in progress(arguments.models, "export"):
            folder = Path(kept) / f"{name}-{arguments.size}"
            in_child(partial(export, name, folder, arguments))
            for threads in arguments.threads:
                rows += measure(name, folder, threads, arguments)
                write_rows(arguments.output / "speed.csv", rows)
    show(rows)


def measure(name: str, folder: Path, threads: int, arguments: argparse.Namespace) -> list[Row]:
    settings = argparse.Namespace(threads=threads, seconds=arguments.seconds, device="cpu")
    builders = {way: partial(build, way, name, folder, arguments.size) for way in ways(name, arguments)}
    origin = in_child(partial(provenance, threads=threads))
    return [
        {"model": name, "size": arguments.size, "threads": threads}
        | row
        | {"file_megabytes": round((folder / FILES[row["name"]]).stat().st_size / 2**20, 2)}
        | origin
        for row in compare(builders, "eager", settings)
    ]


def ways(name: str, arguments: argparse.Namespace) -> list[str]:
    there = [way for way in FILES if way != ANY_SIZE or name == "laplacianformer_nano"]
    return [way for way in there if way == "eager" or way in (arguments.ways or there)]


def export(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Write the files of a model that do not exist yet."""
    from laplacianformer.export._aot_inductor import to_pt2
    from laplacianformer.export._int8 import quantised
    from laplacianformer.export._int8_layers import to_int8
    from laplacianformer.export._onnx_model import to_onnx

    folder.mkdir(parents=True, exist_ok=True)
    model, size = create(name), arguments.size
    save_model(model, str(folder / FILES["eager"]))
    writers: dict[str, Callable[[], bytes]] = {
        "onnxruntime": lambda: to_onnx(model, {}),
        "onnxruntime, kernels": lambda: to_onnx(model, {}, kernels=True),
        "onnxruntime, int8": lambda: quantised(to_onnx(model, {})),
        "onnxruntime, int8, kernels": lambda: quantised(to_onnx(model, {}, kernels=True)),
        "aot_inductor": lambda: to_pt2(model, {}, (size, size)),
        "aot_inductor, bfloat16": lambda: to_pt2(model, {}, (size, size), "bfloat16"),
        "aot_inductor, int8": lambda: to_pt2(to_int8(model, [torch.randn(4, 3, size, size)]), {}, (size, size), "int8"),
        ANY_SIZE: lambda: to_pt2(model, {}),
    }
    for way, make in writers.items():
        path = folder / FILES[way]
        if way in ways(name, arguments) and not path.exists():
            path.write_bytes(make())


def create(name: str) -> Any:
    torch.manual_seed(0)
    return timm.create_model(name).eval()


def build(way: str, name: str, folder: Path, size: int) -> Call:
    images = torch.randn(1, 3, size, size)
    run = runner(way, name, (folder / FILES[way]).read_bytes())
    if way == "torch.compile":
        with torch.inference_mode():
            run(images)  # compiles
    return torch.inference_mode()(lambda: run(images))


def runner(way: str, name: str, file: bytes) -> Callable[[torch.Tensor], Any]:
    from laplacianformer.export._aot_inductor import pt2_runner
    from laplacianformer.export._onnx_library import onnx_library
    from laplacianformer.export._onnx_model import onnx_runner

    if way.startswith("onnxruntime"):
        return onnx_runner(file, onnx_library() if way.endswith("kernels") else None)
    if way.startswith("aot_inductor"):
        return pt2_runner(file)
    model: nn.Module = create(name)
    if way == "eager, bfloat16":
        return torch.autocast("cpu", torch.bfloat16)(model)
    # One compilation for every number of threads, as in the .pt2 packages.
    return torch.compile(model, options={"cpp.dynamic_threads": True}) if way == "torch.compile" else model


if __name__ == "__main__":
    main()
