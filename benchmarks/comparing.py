"""What the benchmarks share: comparisons of time and peak memory, and how their rows are shown and written."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from laplacianformer._util.measuring import Call, in_child, interleaved, keep_freed_memory, peak_memory, quotient
from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, write_rows

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"
Builders = dict[str, Callable[[], Call]]
# Labels of the rows, the functions that build each call, and the name of the one that the others are divided by.
Comparison = tuple[Row, Builders, str]
Item = TypeVar("Item")


def parser_of(description: str | None, output: Path) -> argparse.ArgumentParser:
    """A parser with the docstring of the script as its help, and --output."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    shown = output.relative_to(RESULTS.parent.parent)
    parser.add_argument("--output", type=Path, default=output, metavar="DIR", help=f"folder (default: {shown})")
    return parser


def add_measuring(parser: argparse.ArgumentParser, seconds: float) -> None:
    """--threads, --device and --seconds."""
    threads = torch.get_num_threads()
    parser.add_argument("--threads", type=int, default=threads, metavar="N", help="of torch (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="measuring time per function (default: %(default)s)"
    )


def progress(items: Iterable[Item], description: str) -> Iterator[Item]:
    """The items, with a progress bar on the standard error."""
    yield from track(list(items), description, console=Console(stderr=True))


def compare_all(comparisons: Iterable[Comparison], file: Path, arguments: argparse.Namespace) -> list[Row]:
    """Measure all comparisons. The file is written after each one, so that a long run that is stopped is not lost."""
    origin = in_child(partial(provenance, arguments.device, arguments.threads))
    rows: list[Row] = []
    for labels, builders, base in progress(comparisons, file.stem):
        rows += [labels | row | origin for row in compare(builders, base, arguments)]
        write_rows(file, rows)
    show(rows)
    return rows


def compare(builders: Builders, base: str, arguments: argparse.Namespace) -> Iterator[Row]:
    """Time and peak memory of every call, and its time over that of `base`.

    Everything runs in forked processes: this one starts neither threads nor a GPU, so that forking stays safe.
    """

    def prepare() -> None:
        torch.set_num_threads(arguments.threads)
        torch.set_default_device(arguments.device)

    def peak(build: Callable[[], Call]) -> float:
        prepare()
        return peak_memory(build(), arguments.device)

    def times_of_all() -> dict[str, Any]:
        prepare()
        keep_freed_memory()
        calls = {name: build() for name, build in builders.items()}
        return interleaved(calls, arguments.seconds, rounds=3, device=arguments.device)

    memory = {name: in_child(partial(peak, build)) for name, build in builders.items()}
    timed = in_child(times_of_all)
    times = timed["times"]
    for name in builders:
        yield {
            "name": name,
            "milliseconds": round(times[name]["median_ms"], 3),
            "base": base,
            "over_base": round(quotient(timed["each"], name, base), 3),
            "rounds": times[name]["rounds"],
            "cpu_over_wall": round(timed["cpu_over_wall"], 2),
            "peak_megabytes": round(memory[name], 1),
        }


def inference_or_training(forward: Call, training: bool) -> Call:
    """A call of `forward` in inference mode, or with its backward pass."""
    if training:
        return lambda: forward().sum().backward()
    return torch.inference_mode()(forward)


def show(rows: Sequence[Row]) -> None:
    """A table of all columns but the provenance, which is its title."""
    origin = [key for key in (*provenance(), "triton") if key in rows[0]]
    table = Table(title=", ".join(f"{key} {rows[0][key]}" for key in origin if key != "date"))
    columns = [column for column in rows[0] if column not in origin]
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console(width=max(Console().width, 160)).print(table)
