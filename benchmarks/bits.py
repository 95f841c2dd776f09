"""Whether two versions of the package compute the same bits: outputs, gradients, statistics, a training, an export.

    python benchmarks/bits.py write before.json      with one version installed
    python benchmarks/bits.py write after.json       with the other
    python benchmarks/bits.py compare before.json after.json --output results/benchmarks/versions/bits.json

Only names that a user may rely on are called, so the script runs on every version. Hashes are compared, not numbers:
one bit of difference shows. They hold for one machine and one version of torch; threads are fixed at one.
"""

import argparse
import csv
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import laplacianformer
from laplacianformer import ops

SIZES = ("nano", "tiny", "small", "medium", "large", "huge")
SHAPES = ((2, 3, 96, 65), (1, 3, 224, 224))  # two images on odd grids; and one with every token a landmark in stage 4
UNSTABLE = ("images_per_second", "data_wait")  # columns of metrics.csv that measure time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="hash everything").add_argument("file", type=Path)
    compare_parser = commands.add_parser("compare", help="print what differs; exit code 1 if anything does")
    compare_parser.add_argument("files", type=Path, nargs=2)
    compare_parser.add_argument("--output", type=Path, help="write what was compared, and what differs")
    arguments = parser.parse_args()
    if arguments.command == "write":
        torch.set_num_threads(1)
        hashes = {name: digest for part in (models, shipped, digits, onnx) for name, digest in part()}
        arguments.file.write_text(json.dumps({**origin(), "hashes": hashes}, indent=2) + "\n")
        print(f"{arguments.file}: {len(hashes)} hashes")
    else:
        sys.exit(compare(*(json.loads(file.read_text()) for file in arguments.files), output=arguments.output))


def origin() -> dict[str, str]:
    """Where hashes come from: the commit of the package that was imported."""
    folder = Path(laplacianformer.__file__).parent
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True).stdout.strip()
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {"commit": commit, "machine": machine, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def compare(before: dict[str, Any], after: dict[str, Any], output: Path | None) -> int:
    names = sorted({*before["hashes"], *after["hashes"]})
    different = [name for name in names if before["hashes"].get(name) != after["hashes"].get(name)]
    for name in different:
        print(f"differs: {name}")
    print(f"{len(names) - len(different)} of {len(names)} hashes are equal")
    if output is not None:
        stated = {"before": before.pop("commit"), "after": after.pop("commit")}
        found = {"compared": len(names), "different": different, "names": names}
        kept = {key: value for key, value in after.items() if key != "hashes"}
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps({**stated, **kept, **found}, indent=2) + "\n")
    return 1 if different else 0


def digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def models() -> Iterator[tuple[str, str]]:
    """Random weights of a fixed seed: evaluation, evaluation with gradients, a step of training, on both backends."""
    for size in SIZES:
        for shape in SHAPES:
            for backend in ("cpu", "reference"):
                with ops.use_backend(backend):
                    for part, value in hashes_of_model(size, shape):
                        yield f"{size} {'x'.join(map(str, shape))} {backend}: {part}", value


def hashes_of_model(size: str, shape: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    torch.manual_seed(0)
    model = timm.create_model(f"laplacianformer_{size}", num_classes=10)
    images = torch.randn(shape)
    with torch.inference_mode():
        yield "evaluation", digest(model.eval()(images))
    for name, mode in (("evaluation with gradients", model.eval), ("training", model.train)):
        mode()
        model.zero_grad()
        given = images.clone().requires_grad_()
        out = model(given)
        out.square().sum().backward()
        yield name, digest(out, *gradients(model), given.grad, *model.buffers())


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def shipped() -> Iterator[tuple[str, str]]:
    model = timm.create_model("laplacianformer_nano", pretrained=True, num_classes=10).eval()
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        yield "shipped weights", digest(model(images))
        with torch.autocast("cpu", torch.bfloat16):
            yield "shipped weights, bfloat16 autocast", digest(model(images))
    with torch.autocast("cpu", torch.bfloat16):
        out = model.train()(images)
    out.float().square().sum().backward()
    yield "shipped weights, training under autocast", digest(out, *gradients(model), *model.buffers())


def digits() -> Iterator[tuple[str, str]]:
    """The loss curve of the recipe `digits`, cut short, and the weights at its end."""
    with tempfile.TemporaryDirectory() as folder:
        run("train", "--recipe", "digits", "--output", folder, "optimise.epochs=2", "run.tensorboard=false")
        with (Path(folder) / "metrics.csv").open(newline="") as file:
            rows = [{key: row[key] for key in row if key not in UNSTABLE} for row in csv.DictReader(file)]
        yield "digits: metrics", hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
        from safetensors.torch import load_file

        # Without the settings of the layers, which are no weights, and which earlier versions didn't write.
        weights = load_file(Path(folder) / "model.safetensors")
        yield "digits: weights", digest(*(weights[name] for name in weights if not name.endswith("_extra_state")))


def onnx() -> Iterator[tuple[str, str]]:
    """What onnxruntime computes with the exported shipped weights."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        run("export", "--format", "onnx", str(path))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for shape in ((1, 3, 32, 32), (2, 3, 47, 64)):
            images = torch.randn(shape, generator=torch.Generator().manual_seed(2))
            (out,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
            yield f"onnx {'x'.join(map(str, shape))}", digest(torch.from_numpy(out))


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "laplacianformer", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
