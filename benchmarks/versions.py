"""Whether a change made anything slower: two checkouts of the package, timed in turn in one run.

    git worktree add ../before COMMIT && (cd ../before && python setup.py build_ext --inplace)
    python benchmarks/versions.py ../before .

Each version runs in a process of its own. In every round both time the same case, one after the other, the first one
alternating, so that what else the machine does meets both alike. A process keeps the luck of where its memory lies, so
that two of the same version differ, too. All is therefore done again with fresh processes, several times.
Printed and written per case: the second version's time over the first's, the median over the starts of the medians over
their rounds, and the quartiles over the starts. Only names that a user may rely on are called, so the script takes
every version. For models, `rival` is the time of both versions over that of timm's pvt_v2_b1, which a third process
takes in the same rounds. `--memory` measures the peak memory of the first call of models instead, in megabytes beyond
what the process had before, each in a process of its own (memory.json).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks" / "versions"
MODELS = [(size, batch, mode) for size in (224, 448, 896) for batch in (1, 4) for mode in ("inference", "training")]
KERNELS = [(op, width, mode) for op in ("kernel", "matmul") for width in (32, 64) for mode in ("inference", "training")]
MODEL, RIVAL = "tiny", "pvt_v2_b1"
TURN = 0.2  # seconds per turn, or one call if that takes longer
PEAK = -1.0  # in place of the seconds of a turn: asks for the peak memory of the first call
Ratios = dict[str, Any]  # "ratio", a number, and for models "rival", one number per version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="*", help="roots of the version before and of the one after")
    parser.add_argument("--starts", type=int, default=7, help="of both processes, at least 2 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="per start (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--memory", action="store_true", help="peak memory of the models instead of times")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder (default: results/benchmarks/versions)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.threads)
    if len(arguments.checkouts) != 2:
        parser.error("give two checkouts: the version before, and the one after")
    return compare_memory(arguments) if arguments.memory else compare(arguments)


def compare_memory(arguments: argparse.Namespace) -> None:
    rows = []
    for case in cases():
        if not case.startswith(MODEL) or arguments.only not in case:
            continue
        workers = [Worker(path.resolve(), arguments.threads) for path in arguments.checkouts]
        megabytes = [round(worker.ask(case, PEAK) / 2**20, 1) for worker in workers]
        for worker in workers:
            worker.end()
        rows.append({"case": case, "megabytes": megabytes})
        print(f"{case:45} {megabytes[0]:8.1f} {megabytes[1]:8.1f} MB", flush=True)
    write(arguments, "memory.json", workers, rows, {})


def compare(arguments: argparse.Namespace) -> None:
    chosen = [case for case in cases() if arguments.only in case and not case.startswith(RIVAL)]
    found: dict[str, list[Ratios]] = {case: [] for case in chosen}
    for start in range(arguments.starts):
        before, after = (path.resolve() for path in arguments.checkouts)
        workers = [Worker(path, arguments.threads) for path in (before, after, after)]  # the last one for the rival
        for case in chosen:
            found[case].append(ratios(workers, case, arguments.rounds))
            print(f"start {start + 1} of {arguments.starts}: {case:45} {found[case][-1]['ratio']:.3f}", flush=True)
        for worker in workers:
            worker.end()
    rows = []
    for case, starts in found.items():
        low, middle, high = statistics.quantiles([start["ratio"] for start in starts], n=4)
        row: dict[str, Any] = {"case": case, "ratio": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}
        if "rival" in starts[0]:
            pairs = zip(*(start["rival"] for start in starts), strict=True)
            row["rival"] = [round(statistics.median(of_version), 4) for of_version in pairs]
        rows.append(row)
        over_rival = f", over {RIVAL} {row['rival']}" if "rival" in row else ""
        print(f"{case:45} {middle:.3f}  ({low:.3f} to {high:.3f}){over_rival}", flush=True)
    write(arguments, "versions.json", workers, rows, {"starts": arguments.starts, "rounds": arguments.rounds})


def write(
    arguments: argparse.Namespace, name: str, workers: "list[Worker]", rows: list[Any], counts: dict[str, int]
) -> None:
    stated = {"commits": [worker.commit for worker in workers[:2]], "threads": arguments.threads, "cases": rows}
    origin = {"date": time.strftime("%Y-%m-%d"), **counts, "machine": workers[1].machine}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / name).write_text(json.dumps({**stated, **origin}, indent=2) + "\n")


def ratios(workers: "list[Worker]", case: str, rounds: int) -> Ratios:
    """Time of the second over that of the first, and for models of both over that of the rival: the medians over the
    rounds."""
    asked = {workers[0]: case, workers[1]: case}
    if case.startswith(MODEL):
        asked[workers[2]] = case.replace(MODEL, RIVAL, 1)
    for worker, name in asked.items():
        worker.ask(name, 0.0)  # builds the case, and warms up
    seconds: list[list[float]] = []
    for number in range(rounds):
        order = list(asked) if number % 2 == 0 else list(asked)[::-1]
        taken = {worker: worker.ask(asked[worker], TURN) for worker in order}
        seconds.append([taken[worker] for worker in asked])
    result: Ratios = {"ratio": statistics.median(after / before for before, after, *_ in seconds)}
    if len(asked) == 3:
        result["rival"] = [statistics.median(taken[version] / taken[2] for taken in seconds) for version in (0, 1)]
    return result


class Worker:
    """One version of the package in a process of its own."""

    def __init__(self, checkout: Path, threads: int) -> None:
        command = [sys.executable, __file__, "--worker", "--threads", str(threads)]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout
        )
        self.commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True
        ).stdout.strip()
        self.machine = self._answer()

    def ask(self, case: str, seconds: float) -> float:
        """Seconds per call, or bytes."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([case, seconds]) + "\n")
        self.process.stdin.flush()
        return float(self._answer())

    def end(self) -> None:
        self.process.communicate()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"a worker ended with code {self.process.wait()}")
        return answer.strip()


def work(threads: int) -> None:
    """Answers one line of [case, seconds] after the other with the seconds per call."""
    import torch

    torch.set_num_threads(threads)
    print(torch.backends.cpu.get_cpu_capability(), flush=True)
    name, call = "", None
    for line in sys.stdin:
        case, seconds = json.loads(line)
        if case != name:
            call = None  # frees the case before
            name, call = case, cases()[case]()
            if seconds == PEAK:
                print(peak_bytes(call), flush=True)
                continue
            call()
        assert call is not None
        repeats, begin = 0, time.perf_counter()
        while repeats == 0 or time.perf_counter() - begin < seconds:
            call()
            repeats += 1
        print((time.perf_counter() - begin) / repeats, flush=True)


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most resident memory during a call, beyond that before it. Linux only."""

    def kilobytes(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is resident now
    before = kilobytes("VmRSS")
    call()
    return (kilobytes("VmHWM") - before) * 1024


def cases() -> dict[str, Callable[[], Callable[[], Any]]]:
    """What builds each call, by name."""
    found: dict[str, Callable[[], Callable[[], Any]]] = {}
    for op, width, mode in KERNELS:
        found[f"{op}, width {width}, {mode}"] = partial(kernel_call, op, width, mode == "training")
    for size, batch, mode in MODELS:
        for name, model in ((MODEL, "laplacianformer_tiny"), (RIVAL, RIVAL)):
            found[f"{name}, {size} px, batch {batch}, {mode}"] = partial(
                model_call, model, size, batch, mode == "training"
            )
    return found


def kernel_call(op: str, width: int, training: bool) -> Callable[[], Any]:
    """8 heads, 3136 queries, 49 landmarks."""
    import torch

    from laplacianformer import ops

    x, y, values = (torch.randn(8, rows, width, requires_grad=training) for rows in (3136, 49, 49))
    grad = torch.randn(8, 3136, 49 if op == "kernel" else width)

    def call() -> None:
        with torch.set_grad_enabled(training):
            out = ops.laplacian_kernel(x, y, 4.0) if op == "kernel" else ops.laplacian_matmul(x, y, values, 4.0)
        if training:
            out.backward(grad)

    return call


def model_call(name: str, size: int, batch: int, training: bool) -> Callable[[], Any]:
    import timm
    import torch

    import laplacianformer  # noqa: F401 - registers the models

    model = timm.create_model(name).train(training)
    images = torch.randn(batch, 3, size, size)

    def call() -> None:
        with torch.set_grad_enabled(training):
            out = model(images)
        if training:
            out.sum().backward()

    return call


if __name__ == "__main__":
    main()
