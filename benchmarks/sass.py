"""What the Triton kernels are compiled to, without a GPU: useful instructions, registers, shared memory, spills.

    python benchmarks/sass.py [--quick] [--architectures 80 90 100 120 gfx942]
                              [--dtypes float32 bfloat16 float16 float64] [--output DIR]

Every kernel is compiled ahead of time, in each of its configurations, and disassembled. For the loop that takes most of
the time, results/benchmarks/triton/sass.csv has

    useful       the fraction of useful instructions in the loop. Forward: subtractions and additions of absolute
                 values, two per pair and feature. Backward: multiply-adds, and one instruction for the sign of each,
                 which really takes three. newton_schulz on the chip: multiply-adds of a whole step
    arithmetic   the fraction of floating-point instructions
    per_pair     the number of all instructions of the loop per pair and feature, or per multiply-add

On sm_100 one instruction adds two numbers: it counts once. `stack` is the size of register spills in bytes, on AMD the
number of spilled VGPRs. Kernels without such a loop (only tensor cores or copies) have registers, stack and shared
memory only. `dtype` is that of the inputs; signs and newton_schulz read float32 copies of bfloat16 and float16, so they
have one row for all three.

The whole table takes about ten minutes. --quick, for the tests, has every configuration of float32 on sm_90; for other
dtypes and architectures, the first configuration with the largest tile. It disassembles for sm_80
and sm_90 alone, without float64.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ahead_of_time
import torch
import triton
from comparing import RESULTS, parser_of, progress, show

from laplacianformer._util.provenance import provenance
from laplacianformer.experiments.rows import Row, write_rows
from laplacianformer.ops import _triton_support as support
from laplacianformer.ops._precision import accumulation_dtype
from laplacianformer.ops.laplacian_kernel import triton as kernels
from laplacianformer.ops.laplacian_matmul import triton as products
from laplacianformer.ops.newton_schulz import triton as inverses

UNROLL = support.UNROLL
ARCHITECTURES = ("80", "90", "100", "120", "gfx942")
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}  # names in torch: in Triton
# What --quick compiles in every configuration, and only in the first. Of float32 on sm_80, what bfloat16 needs too.
QUICK = [("90", "float32")]
QUICK_FIRST = [("80", "bfloat16"), ("80", "float64"), *((one, "float32") for one in ("80", "100", "120", "gfx942"))]
# How many useful instructions of the inner loop each counted instruction stands for.
USEFUL = {
    "forward": {"FADD": 1, "FADD2": 1, "DADD": 1},
    "backward": {"FFMA": 2, "FFMA2": 3, "DFMA": 2},
    "products": {"FFMA": 1, "FFMA2": 1},
}
ARITHMETIC = re.compile(r"[FD](ADD|FMA|MUL|SET|SETP|SEL|MNMX)\d?$")
NO_POINTERS = re.compile(r"(?:_batch|_row|_column)$")
SIZES = ("n", "m", "v", "width", "parts", "weights_rows", "steps", "keep", "iterations")


@dataclass(frozen=True)
class Case:
    name: str
    dtype: str
    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    given: tuple[str, ...]  # arguments in the dtype of the inputs; other pointers are in the accumulation dtype
    loop: str  # key of USEFUL; "" for a kernel without an inner loop
    pairs: int  # pairs and features, or multiply-adds, per iteration of the loop and thread


def cases(architecture: str, dtype: str, some: slice) -> Iterator[Case]:
    """The kernels for inputs of one dtype, in `some` of their configurations."""
    make = partial(case, architecture, dtype)
    sums = accumulation_dtype(getattr(torch, dtype))
    blocks = dict.fromkeys(kernels.block_of_rows(n, sums) for n in (support.PANEL, support.TILE))
    for block in list(blocks)[some]:
        for threads in kernels.FORWARD[some]:
            options = {"FACTOR": -0.25, "BLOCK_N": block, "BLOCK_M": 64} | threads
            yield make(
                f"kernel forward {block} x 64", kernels._forward.fn, options, "out", "forward", UNROLL * block * 64
            )
        if sums == getattr(torch, dtype):
            yield from sign_cases(make, block, some)
    options = {"BLOCK": 64, "num_warps": kernels.WARPS_OF_WEIGHTS}
    yield make("kernel weights (backward) 64 x 64", kernels._multiply, options, "grad out")
    if not (architecture.startswith("gfx") and dtype == "float64"):
        yield from product_cases(make, list(blocks)[some], sums, sums != getattr(torch, dtype), some)
    if dtype == "float32":
        yield from inverse_cases(make, some)


def sign_cases(make: Callable[..., Case], block: int, some: slice) -> Iterator[Case]:
    for width in (32, 16)[some]:
        for threads in kernels.SIGNS[some]:
            options = {"WIDTH": width, "BLOCK_N": block, "BLOCK_D": width} | threads
            if support.enough_pairs(block * width, threads["num_warps"]):
                title = f"signs (backward) {block} x {width}"
                yield make(title, kernels._signs.fn, options, "", "backward", UNROLL * block * width)


def product_cases(
    make: Callable[..., Case], blocks: list[int], sums: torch.dtype, in_parts: bool, some: slice
) -> Iterator[Case]:
    """`in_parts`: also with results in the accumulation dtype, where that is not the dtype of the inputs."""
    for block in blocks:
        for width in (32, 16)[some]:
            options = {"FACTOR": -0.25, "BLOCK_N": block, "BLOCK_M": 64, "BLOCK_V": width}
            options |= products.threads(block, sums)
            title = f"matmul forward {block} x 64 x {width}"
            yield make(title, products._forward, options, "values out", "forward", UNROLL * block * 64)
            if in_parts:
                yield make(
                    title.replace("forward", "forward in parts"),
                    products._forward,
                    options,
                    "values",
                    "forward",
                    UNROLL * block * 64,
                )
    block = products.block_of_weights(sums)
    options = {"FACTOR": -0.25, "BLOCK": block, "BLOCK_V": 16} | products.threads(block, sums)
    title = f"matmul weights (backward) {block} x {block}"
    yield make(title, products._weights, options, "grad values", "forward", UNROLL * block * block)


def inverse_cases(make: Callable[..., Case], some: slice) -> Iterator[Case]:
    through_cache, on_chip = (128,), (64, 32, 16)
    for size in through_cache[some]:
        yield make(f"newton_schulz forward {size}", inverses._steps, inverses.configuration(size))
        yield make(f"newton_schulz backward {size}", inverses._adjoint, inverses.configuration(size))
    for size in on_chip[some]:
        options = inverses.configuration(size)
        terms = size * size * options["DEPTH"]  # per iteration of the loop of each product
        yield make(f"newton_schulz forward {size}", inverses._steps_on_chip, options, "", "products", 2 * terms)
        yield make(f"newton_schulz backward {size}", inverses._adjoint_on_chip, options, "", "products", 5 * terms)


def case(
    architecture: str,
    dtype: str,
    name: str,
    kernel: Any,
    options: dict[str, Any],
    given: str = "",
    loop: str = "",
    turn: int = 0,
) -> Case:
    """`turn`: pairs and features, or multiply-adds, per iteration of the loop in all threads."""
    if architecture.startswith("gfx"):
        options = options | {"PRECISION": "ieee"}
    constants = {key: value for key, value in options.items() if key in kernel.arg_names}
    warps = options["num_warps"]
    return Case(name, dtype, kernel, constants, warps, tuple(given.split()), loop, turn // (32 * warps))


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "triton")
    parser.add_argument(
        "--architectures", nargs="+", default=ARCHITECTURES, choices=ARCHITECTURES, help="(default: all)"
    )
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES, help="(default: all)")
    parser.add_argument("--quick", action="store_true", help="what the tests compile, whatever else is given")
    arguments = parser.parse_args()
    every, first = [(a, d) for a in arguments.architectures for d in arguments.dtypes], []
    if arguments.quick:
        every, first = QUICK, QUICK_FIRST
    chosen = [
        (one, architecture)
        for some, pairs in ((slice(None), every), (slice(1), first))
        for architecture, dtype in pairs
        for one in cases(architecture, dtype, some)
    ]
    if arguments.quick:
        chosen = [quicker(one, architecture) for one, architecture in chosen if not is_repeated(one, architecture)]
    origin = provenance() | {"triton": triton.__version__}
    rows = [measure(one, architecture) | origin for one, architecture in progress(chosen, "kernels")]
    write_rows(arguments.output / "sass.csv", rows)
    show(rows)


def is_repeated(one: Case, architecture: str) -> bool:
    return (architecture, one.dtype) == ("80", "float32") and bool(one.given)


def quicker(one: Case, architecture: str) -> tuple[Case, str]:
    """Not disassembled where no test asks for the loop."""
    disassembled = architecture in ("80", "90") and one.dtype != "float64"
    return (one if disassembled else replace(one, loop="")), architecture


def measure(one: Case, architecture: str) -> Row:
    compiled = build(one, architecture)
    row: Row = {"kernel": one.name, "dtype": one.dtype, "warps": one.num_warps, "architecture": architecture}
    row |= {"useful": "", "arithmetic": "", "per_pair": "", "shared": compiled.metadata.shared}
    if architecture.startswith("gfx"):
        assembly = compiled.asm["amdgcn"]
        fields = {name: int(value) for name, value in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s*(\d+)", assembly)}
        return row | {"registers": fields["vgpr_count"], "stack": fields["vgpr_spill_count"]}
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = run(triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin)
        listing = run(triton.knobs.nvidia.nvdisasm.path, "-c", cubin) if one.loop else ""
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    if one.loop:
        row |= fractions(inner_loop(listing, USEFUL[one.loop]), one)
    return row | {"registers": int(registers), "stack": int(stack)}


def build(one: Case, architecture: str) -> Any:
    names = one.kernel.arg_names
    signature = {name: kind(name, one) for name in names}
    # As the launcher would find: pointers and strides of padded buffers are multiples of 16.
    aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") or name.endswith("_batch")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    options = {"num_warps": one.num_warps, "num_stages": 1, "enable_fp_fusion": True}
    source = {"fn": one.kernel, "signature": signature, "constexprs": one.constants, "attrs": attributes}
    return ahead_of_time.compiled(architecture, options, **source)


def kind(argument: str, one: Case) -> str:
    """Strides are 64-bit here, as for the largest tensors; sizes are 32-bit; all others are pointers."""
    if argument in one.constants:
        return "constexpr"
    if NO_POINTERS.search(argument):
        return "i64"
    if argument in SIZES:
        return "i32"
    sums = "fp64" if one.dtype == "float64" else "fp32"
    return f"*{DTYPES[one.dtype] if argument in one.given else sums}"


def run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def inner_loop(listing: str, useful: dict[str, int]) -> Counter[str]:
    """The instructions of the shortest loop that has more than half as many useful ones as any loop."""
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


def fractions(loop: Counter[str], one: Case) -> Row:
    useful = sum(weight * loop[name] for name, weight in USEFUL[one.loop].items())
    arithmetic = sum(count for name, count in loop.items() if ARITHMETIC.match(name))
    return {
        "useful": round(useful / loop.total(), 3),
        "arithmetic": round(arithmetic / loop.total(), 3),
        "per_pair": round(loop.total() / one.pairs, 2),
    }


if __name__ == "__main__":
    main()
