"""Whether two versions of the package compute the same bits: outputs, gradients, statistics, a training, an export.

    python benchmarks/bits.py write before.json      with one version installed
    python benchmarks/bits.py write after.json       with the other
    python benchmarks/bits.py compare before.json after.json --output results/benchmarks/versions/bits.json

Only names that a user may rely on are called, so the script runs on every version; options whose defaults changed are
given. Hashes are compared: one bit of difference shows. How large it is, is estimated from up to 64 numbers of each
tensor, relative to the largest number of the tensor. All of it holds for one machine and one version of torch; threads
are fixed at one.
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
GAIN = {"gain": 1.0}  # the default until it became "auto"
CURVES = ("loss", "accuracy", "gradient_norm", "validation_loss", "validation_accuracy")


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
        found = {name: value for part in (models, shipped, digits, onnx) for name, value in part()}
        arguments.file.write_text(json.dumps({**origin(), "found": found}) + "\n")
        print(f"{arguments.file}: {len(found)} hashes")
    else:
        sys.exit(compare(*(json.loads(file.read_text()) for file in arguments.files), output=arguments.output))


def origin() -> dict[str, str]:
    """Where hashes come from: the commit of the package that was imported."""
    folder = Path(laplacianformer.__file__).parent
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True).stdout.strip()
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {"commit": commit, "machine": machine, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def compare(before: dict[str, Any], after: dict[str, Any], output: Path | None) -> int:
    names = sorted({*before["found"], *after["found"]})
    different: dict[str, float | None] = {}
    for name in names:
        pair = [version["found"].get(name) for version in (before, after)]
        if None in pair or pair[0]["hash"] != pair[1]["hash"]:
            different[name] = None if None in pair else difference(*(version["samples"] for version in pair))
            print(f"differs: {name}: {different[name]}")
    print(f"{len(names) - len(different)} of {len(names)} hashes are equal")
    if output is not None:
        stated = {"before": before.pop("commit"), "after": after.pop("commit")}
        found = {"compared": len(names), "different": different, "names": names}
        kept = {key: value for key, value in after.items() if key != "found"}
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps({**stated, **kept, **found}, indent=2) + "\n")
    return 1 if different else 0


def difference(before: list[list[float]], after: list[list[float]]) -> float | None:
    """The largest of all tensors, each relative to its largest number; None where there are none to compare."""
    if [len(numbers) for numbers in before] != [len(numbers) for numbers in after] or not before:
        return None
    largest = 0.0
    for (scale, *old), (_, *new) in zip(before, after, strict=True):
        apart = max((abs(a - b) for a, b in zip(old, new, strict=True)), default=0.0)
        largest = max(largest, apart / scale if scale else apart)
    return float(f"{largest:.2g}")


def digest(*tensors: Tensor) -> dict[str, Any]:
    """The hash of all numbers; and of each tensor its largest number and up to 64, evenly spaced."""
    found, samples = hashlib.sha256(), []
    for tensor in tensors:
        found.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        numbers = tensor.detach().double().reshape(-1)
        if numbers.numel():
            samples.append([numbers.abs().max().item(), *numbers[:: -(-numbers.numel() // 64)].tolist()])
    return {"hash": found.hexdigest()[:16], "samples": samples}


def models() -> Iterator[tuple[str, dict[str, Any]]]:
    """Random weights of a fixed seed: evaluation, evaluation with gradients, a step of training, on both backends."""
    for size in SIZES:
        for shape in SHAPES:
            for backend in ("cpu", "reference"):
                with ops.use_backend(backend):
                    for part, value in hashes_of_model(size, shape):
                        yield f"{size} {'x'.join(map(str, shape))} {backend}: {part}", value


def hashes_of_model(size: str, shape: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    torch.manual_seed(0)
    model = timm.create_model(f"laplacianformer_{size}", num_classes=10, attention_args=GAIN)
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


def shipped() -> Iterator[tuple[str, dict[str, Any]]]:
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


def digits() -> Iterator[tuple[str, dict[str, Any]]]:
    """The loss curve of the recipe `digits`, cut short, and the weights at its end."""
    with tempfile.TemporaryDirectory() as folder:
        run("train", "--recipe", "digits", "--output", folder, "optimise.epochs=2", "run.tensorboard=false")
        with (Path(folder) / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        for name in CURVES:
            curve = [float(row[name]) for row in rows if row[name]]
            yield f"digits: {name}", digest(torch.tensor(curve, dtype=torch.float64))
        from safetensors.torch import load_file

        # Without the settings of the layers, which are no weights, and which earlier versions didn't write.
        weights = load_file(Path(folder) / "model.safetensors")
        yield "digits: weights", digest(*(weights[name] for name in weights if not name.endswith("_extra_state")))


def onnx() -> Iterator[tuple[str, dict[str, Any]]]:
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
