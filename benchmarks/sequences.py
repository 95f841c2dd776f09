"""One training step of the encoder of Long Range Arena by number of tokens: time in interleaved rounds, peak memory.

    python benchmarks/sequences.py            1,024, 4,096 and 16,384 tokens
    python benchmarks/sequences.py --quick    256 and 512 tokens, to see that it runs

Two layers of width 64, one sequence without padding; forward pass, loss, backward pass and a step of AdamW. `softmax`
is the same encoder with torch's scaled_dot_product_attention, `nystromformer` has 128 landmarks like `laplacian`, and
`none` is everything but the mixing of tokens. Writes steps.csv to results/benchmarks/sequences/. `over_base` is the
median over the rounds of the time divided by that of softmax attention in the same round.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from comparing import RESULTS, Comparison, add_measuring, compare_all, parser_of
from torch.nn import functional as F

from laplacianformer._util.measuring import Call
from laplacianformer.sequences import SequenceEncoder

LENGTHS = (1024, 4096, 16384)
QUICK_LENGTHS = (256, 512)
# With the arguments of the recipes.
MIXERS = {"laplacian": {"qk_norm": True}, "nystromformer": {}, "softmax": {}, "none": {}}
VOCABULARY, CLASSES = 257, 2


def main() -> None:
    parser = parser_of(__doc__, RESULTS / "sequences")
    parser.add_argument("--quick", action="store_true", help="short sequences, to see that it runs")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="sequences per step (default: %(default)s)")
    add_measuring(parser, seconds=3.0)
    arguments = parser.parse_args()
    lengths = QUICK_LENGTHS if arguments.quick else LENGTHS
    compare_all(steps(lengths, arguments.batch), arguments.output / "steps.csv", arguments)


def steps(lengths: Sequence[int], batch: int) -> Iterator[Comparison]:
    for length in lengths:
        builders = {name: partial(build, name, length, batch) for name in MIXERS}
        yield {"tokens": length, "batch": batch}, builders, "softmax"


def build(attention: str, length: int, batch: int) -> Call:
    model = SequenceEncoder(VOCABULARY, length, CLASSES, attention=attention, attention_args=MIXERS[attention])
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    tokens, labels = torch.randint(1, VOCABULARY, (batch, length)), torch.randint(CLASSES, (batch,))

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(tokens), labels).backward()
        optimiser.step()

    return step


if __name__ == "__main__":
    main()
