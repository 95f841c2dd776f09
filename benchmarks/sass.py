"""What the Triton kernels are compiled to, with no GPU: useful instructions, registers, shared memory, spills.

    python benchmarks/sass.py [--quick] [--architectures 80 90 100 120 gfx942] [--output results/triton]

Every kernel is compiled ahead of time, in each of its configurations, and disassembled. For the loop that takes the
time, the table has, out of all instructions of the loop,

    useful       forward: subtractions and additions of absolute values, two for each pair and feature;
                 backward: multiply-adds, and one instruction for the sign of each, which really takes three
    arithmetic   all floating-point instructions
    per pair     all instructions of the loop, divided by the pairs and features that they are for

On sm_100 one instruction adds two numbers: it counts once. `stack` is what registers spill to, in bytes; `vgpr` spills
for AMD. Kernels without such a loop, all matrix products or copies, have registers, stack and shared memory only.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ahead_of_time
import torch
import triton
from rich.console import Console
from rich.table import Table

from laplacianformer.ops import triton_support as support
from laplacianformer.ops.laplacian_kernel import triton as kernels
from laplacianformer.ops.laplacian_matmul import triton as products
from laplacianformer.ops.newton_schulz import triton as inverses
from laplacianformer.provenance import provenance

RESULTS = Path(__file__).parent.parent / "results" / "triton"
ARCHITECTURES = ("80", "90", "100", "120", "gfx942")
# Instructions of the inner loop, for a pair and feature, that the mathematics asks for, by the one that is counted.
USEFUL = {"forward": {"FADD": 1, "FADD2": 1}, "backward": {"FFMA": 2, "FFMA2": 3}}
ARITHMETIC = re.compile(r"F(ADD|FMA|MUL|SET|SETP|SEL|MNMX)\d?$")
NO_POINTERS = re.compile(r"(?:_batch|_row|_column)$")

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    loop: str = ""  # "forward" or "backward": which instructions of the inner loop are useful
    pairs: int = 0  # pairs and features of one turn of the loop in one thread


def cases(precision: str, quick: bool) -> Iterator[Case]:
    some = slice(1 if quick else None)
    for block in (128, 64)[some]:
        for threads in kernels.FORWARD[some]:
            constants = {"FACTOR": -0.25, "BLOCK_N": block, "BLOCK_M": 64} | threads
            yield case("kernel forward", kernels._forward.fn, constants, "forward", block * 64)
        for threads in kernels.SIGNS[some]:
            constants = {"WIDTH": 32, "BLOCK_N": block, "BLOCK_D": 32} | threads
            yield case("signs (backward)", kernels._signs.fn, constants, "backward", block * 32)
        for width in (32, 16)[some]:
            constants = {"FACTOR": -0.25, "BLOCK_N": block, "BLOCK_M": 64, "BLOCK_V": width}
            constants |= products.threads(block, torch.float32)
            yield case("matmul forward", products._forward, constants, "forward", block * 64, precision)
    constants = {"FACTOR": -0.25, "BLOCK": 64, "BLOCK_V": 16} | products.threads(64, torch.float32)
    yield case("matmul weights (backward)", products._weights, constants, "forward", 64 * 64, precision)
    yield case("kernel weights (backward)", kernels._multiply, {"BLOCK": 64, "num_warps": 4})
    for size in (128, 64, 32, 16)[some]:
        for name, kernel in (("newton_schulz forward", inverses._steps), ("newton_schulz backward", inverses._adjoint)):
            yield case(f"{name} {size}", kernel, inverses.tiling(size), precision=precision)


def case(name: str, kernel: Any, options: dict[str, Any], loop: str = "", tile: int = 0, precision: str = "") -> Case:
    constants = {key: value for key, value in options.items() if key in kernel.arg_names}
    if precision:
        constants["PRECISION"] = precision
    warps = options["num_warps"]
    blocks = " x ".join(str(value) for key, value in constants.items() if key.startswith("BLOCK_"))
    return Case(f"{name} {blocks}".strip(), kernel, constants, warps, loop, support.UNROLL * tile // (32 * warps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", nargs="+", default=ARCHITECTURES, choices=ARCHITECTURES)
    parser.add_argument("--quick", action="store_true", help="large tiles in their first configuration only")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the CSV (default: results/triton)")
    arguments = parser.parse_args()
    rows, origin = [], provenance() | {"triton": triton.__version__}
    for architecture in arguments.architectures:
        for one in cases("ieee" if architecture.startswith("gfx") else "tf32x3", arguments.quick):
            rows.append(measure(one, architecture) | origin)
            print(".", end="", file=sys.stderr, flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "sass.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    show(rows)


def measure(one: Case, architecture: str) -> Row:
    compiled = build(one, architecture)
    row: Row = {"kernel": one.name, "warps": one.num_warps, "architecture": architecture}
    row |= {"useful": "", "arithmetic": "", "per_pair": "", "shared": compiled.metadata.shared}
    if architecture.startswith("gfx"):
        assembly = compiled.asm["amdgcn"]
        fields = {name: int(value) for name, value in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s*(\d+)", assembly)}
        return row | {"registers": fields["vgpr_count"], "stack": fields["vgpr_spill_count"]}
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = run(triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin)
        listing = run(triton.knobs.nvidia.nvdisasm.path, "-c", cubin)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    if one.loop:
        row |= shares(inner_loop(listing, USEFUL[one.loop]), one)
    return row | {"registers": int(registers), "stack": int(stack)}


def build(one: Case, architecture: str) -> Any:
    names = one.kernel.arg_names
    signature = {name: "constexpr" if name in one.constants else kind(name) for name in names}
    # What the launcher would find: pointers and strides of padded buffers are multiples of 16.
    aligned = [i for i, name in enumerate(names) if signature[name] == "*fp32" or name.endswith("_batch")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    options = {"num_warps": one.num_warps, "num_stages": 1, "enable_fp_fusion": True}
    source = {"fn": one.kernel, "signature": signature, "constexprs": one.constants, "attrs": attributes}
    return ahead_of_time.compiled(architecture, options, **source)


def kind(argument: str) -> str:
    """Strides are 64-bit here, as for the largest tensors; sizes are 32-bit; the rest are pointers."""
    if NO_POINTERS.search(argument):
        return "i64"
    sizes = ("n", "m", "v", "width", "parts", "weights_rows", "steps", "keep", "iterations")
    return "i32" if argument in sizes else "*fp32"


def run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def inner_loop(listing: str, useful: dict[str, int]) -> Counter[str]:
    """The instructions of the shortest loop that has most of the useful ones."""
    found = []
    start: dict[str, int] = {}
    instructions: list[str] = []
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            start[label.group(1)] = len(instructions)
        elif code := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z]\w*)(.*?);", line):
            instructions.append(code.group(1))
            target = re.search(r"\.L_x_\d+", code.group(2)) if code.group(1) == "BRA" else None
            if target and target.group() in start:
                found.append(Counter(instructions[start[target.group()] :]))
    most = max(sum(loop[name] for name in useful) for loop in found)
    return min((loop for loop in found if sum(loop[name] for name in useful) > most / 2), key=Counter.total)


def shares(loop: Counter[str], one: Case) -> Row:
    useful = sum(weight * loop[name] for name, weight in USEFUL[one.loop].items())
    arithmetic = sum(count for name, count in loop.items() if ARITHMETIC.match(name))
    return {
        "useful": round(useful / loop.total(), 3),
        "arithmetic": round(arithmetic / loop.total(), 3),
        "per_pair": round(loop.total() / one.pairs, 2),
    }


def show(rows: list[Row]) -> None:
    table = Table(title=f"triton {rows[0]['triton']}, commit {rows[0]['commit']}")
    columns = [name for name in rows[0] if name not in (*provenance(), "triton")]
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
