"""Generated command lines. They end with a code that is documented, and with a line that says why."""

import contextlib
import io
import os
import random
import shutil
from pathlib import Path
from typing import Any

from laplacianformer.cli import main
from tests.fuzz import nasty
from tests.fuzz.files import Case, Samples
from tests.fuzz.folders import odd_entries
from tests.fuzz.outcome import ClearError, SilentlyWrong

OPTIONS = {
    "predict": ("--top", "--device", "--query", "--weights", "--attention", "--json", "--precision"),
    "detect": ("--threshold", "--device", "--weights", "--precision"),
    "segment": ("--window", "--device", "--weights", "--precision"),
    "diagnose": ("--most", "--device", "--weights", "--teacher", "--teacher-weights", "--json"),
    "eval": ("--split", "--batch-size", "--workers", "--device", "--weights", "--data", "--precision"),
    "export": ("--format", "--size", "--data", "--weights", "--precision"),
    "info": ("--size", "--json"),
    "train": ("--recipe", "--data", "--resume"),
    "convert": ("--recipe", "--layers", "--weights", "--classes", "--data", "--allow-pipes"),
    "reproduce": ("--processes", "--weights", "--page"),
    "demo": ("--port", "--weights"),
}


def command_line(rng: random.Random, samples: Samples) -> Case:
    """A command with an option that can't be right, among others that may be. Nothing that takes long is started."""
    command = rng.choice(list(OPTIONS))
    output = samples.folder / f"out-{rng.randrange(10**9)}"
    classifier, detector, segmenter = (
        str(samples.folder / f"{name}.safetensors") for name in ("classifier", "detector", "segmenter")
    )
    sure = {
        "predict": [str(samples.picture), "--weights", classifier],
        "detect": [str(samples.picture), "--weights", detector, "--output", str(output)],
        "segment": [str(samples.picture), "--weights", segmenter, "--output", str(output)],
        "diagnose": [str(samples.picture), "--weights", classifier],
        "eval": ["--weights", classifier, "--data", str(samples.folder / "gone"), "--output", str(output)],
        "export": ["--weights", str(samples.folder / "gone.safetensors"), "--format", "onnx", f"{output}.onnx"],
        "info": ["--sizes"],
        "train": ["--recipe", "digits", "--output", str(output), f"{rng.choice('abc')}.b=1"],
        "convert": [classifier, "--data", str(samples.folder / "gone"), "--output", f"{output}.safetensors"],
        "reproduce": [rng.choice(["nothing", "", "lambda2"])],
        "demo": ["--weights", str(samples.folder / "gone.safetensors")],
    }[command]
    odd = [rng.choice(OPTIONS[command])]
    if rng.random() < 0.9:
        odd.append(_text(rng))
    if command == "train" and rng.random() < 0.7:
        odd = [f"{rng.choice(['data.size', 'optimise.lr', 'run.seed', 'model.args.depths', 'x'])}={_text(rng)}"]
    arguments = [command, *sure, *odd] if rng.random() < 0.7 else [command, *odd, *sure]

    def run() -> None:
        code, said = _ended(arguments)
        if code == 2:
            raise ClearError(_without(arguments, said[-1] if said else ""))
        if code not in (0, 1) and not isinstance(code, str):
            raise SilentlyWrong(f"exit code {code} of {arguments}: {said}")

    return run


def pictures(rng: random.Random, samples: Samples) -> Case:
    """Images in odd folders, given to detect and segment: a result or a reason for each, and the images stay."""
    command, name = rng.choice([("detect", "detector"), ("segment", "segmenter")])
    weights = ["--weights", str(samples.folder / f"{name}.safetensors")]
    steps = odd_entries(rng)
    given, inside = rng.choice(["", "", "a", "a/*", "**/*.png", "gone"]), rng.choice(["out", "out", "a/0.png", "loop"])
    inside = rng.choice([inside, given]) if given in ("", "a") else inside

    def run() -> None:
        root = samples.folder / f"case-{rng.randrange(10**9)}"
        (root / "a").mkdir(parents=True)
        try:
            shutil.copyfile(samples.picture, root / "a" / "0.png")
            for index, (make, folder) in enumerate(steps, 1):
                (root / folder).mkdir(parents=True, exist_ok=True)
                make(root / folder, root, index)
            before = _contents(root)
            code, said = _ended([command, *weights, str(root / given), "--output", str(root / inside)])
            if before.items() - _contents(root).items():
                raise SilentlyWrong(f"{command} of {given!r} to {inside!r} has changed what was there")
            if code in (1, 2):
                raise ClearError(_without([str(root)], said[-1] if said else ""))
            if code:
                raise SilentlyWrong(f"exit code {code}: {said}")
        finally:
            shutil.rmtree(root)

    return run


def _contents(root: Path) -> dict[str, Any]:
    """Files and links by name, without following any."""
    found = {}
    for folder, folders, names in os.walk(root):
        for path in (Path(folder) / name for name in [*folders, *names]):
            found[str(path)] = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
    return found


def _ended(arguments: list[str]) -> tuple[Any, list[str]]:
    """The exit code of a command, and the lines that it wrote to stderr."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            main([_as_argument(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    return code, stderr.getvalue().encode(errors="backslashreplace").decode().strip().splitlines()  # as stderr does


def _without(arguments: list[str], said: str) -> str:
    """A message may repeat what was given, however long that is."""
    for argument in arguments:
        said = said.replace(argument, "ARGUMENT") if len(argument) > 200 else said
    return said


def _text(rng: random.Random) -> str:
    return rng.choice([nasty.text(rng), str(rng.choice(nasty.NUMBERS)), "9" * 5000, "meta", "cuda:99"])


def _as_argument(text: str) -> str:
    """As it would come from a shell: without null characters, and with bytes that are not UTF-8 as surrogates."""
    return text.replace("\0", "").encode("utf-8", errors="surrogatepass").decode("utf-8", errors="surrogateescape")
