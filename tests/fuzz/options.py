"""Generated command lines. They end with a code that is documented, and with a line that says why."""

import contextlib
import io
import random

from laplacianformer.cli import main
from tests.fuzz import nasty
from tests.fuzz.files import Case, Samples
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
        stdout, stderr = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                main([_as_argument(argument) for argument in arguments])
        except SystemExit as stop:
            said = stderr.getvalue().encode(errors="backslashreplace").decode().strip()  # as stderr does
            if stop.code == 2:
                raise ClearError(_without(arguments, said.splitlines()[-1] if said else "")) from None
            if stop.code not in (0, 1) and not isinstance(stop.code, str):
                raise SilentlyWrong(f"exit code {stop.code} of {arguments}: {said}") from None

    return run


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
