"""How large the deviations of the baselines from their authors' code are that are left (docs/baselines.md).

    python benchmarks/deviations.py

Each is the relative difference of the global branch, |ours - theirs|_F / |theirs|_F, in one layer of 64 channels and 2
heads at its initial weights, in float64, on 4 smooth random images of 16 x 16 tokens (normalised, seed 0), without
rotary positions. Where the authors draw at random, `between_draws` is the same for two draws of theirs. Writes
results/benchmarks/baselines/deviations.csv.
"""

from collections.abc import Callable

import torch
from comparing import RESULTS, parser_of, show
from torch import Tensor
from torch.nn import functional as F

from laplacianformer._util.provenance import provenance
from laplacianformer.attention import ATTENTIONS
from laplacianformer.attention.baselines.nystromformer import _pseudo_inverse
from laplacianformer.attention.baselines.performer import _draw_orthogonal
from laplacianformer.experiments.rows import Row, write_rows

SIDE, GRID = 16, 4
SIZE = (SIDE, SIDE)


def main() -> None:
    arguments = parser_of(__doc__, RESULTS / "baselines").parse_args()
    rows = [
        {
            "mixer": mixer,
            "deviation": deviation,
            "between_draws": "",
            **found(),
            **provenance(threads=torch.get_num_threads()),
        }
        for mixer, deviation, found in CASES
    ]
    write_rows(arguments.output / "deviations.csv", rows)
    show(rows)


def inputs(name: str, **options: object) -> tuple[torch.nn.Module, Tensor, Tensor, Tensor]:
    """A layer and its queries, keys and values."""
    torch.manual_seed(0)
    x = F.interpolate(torch.randn(4, 64, 4, 4, dtype=torch.float64), size=SIZE, mode="bicubic").flatten(2).mT
    layer = ATTENTIONS[name](64, 2, rope=False, **options).double()
    q, k, v = layer.project(F.layer_norm(x, (64,)), SIZE)
    return layer, q.detach(), k.detach(), v.detach()


def difference(ours: Tensor, theirs: Tensor) -> float:
    return float(f"{((ours - theirs).norm() / theirs.norm()).item():.2g}")


@torch.no_grad()
def skyformer_landmarks() -> Row:
    """Drawn from the tokens of queries and keys together, as many as here."""
    layer, q, k, v = inputs("skyformer", grid=GRID)
    ours = layer.mix(q, k, v, SIZE)
    tokens = torch.cat([q, k], dim=-2)

    def drawn() -> Tensor:
        x = tokens[:, :, torch.randperm(tokens.shape[-2])[: 2 * GRID**2]]
        return layer.kernel(q, x) @ layer.inverse(layer.kernel(x, x)) @ layer.kernel(x, k) @ v

    first, second = drawn(), drawn()
    return {"difference": difference(ours, first), "between_draws": difference(second, first)}


@torch.no_grad()
def skyformer_steps() -> Row:
    """Third-order steps, 6 of them, from the identity."""
    layer, q, k, v = inputs("skyformer", grid=GRID)
    x = layer.points(q, k, SIZE, None)
    identity = torch.eye(x.shape[-2], dtype=x.dtype)
    m = layer.kernel(x, x) + layer.eps * identity
    root = m.sum(-1, keepdim=True).rsqrt()
    a, z = root * m * root.mT, identity
    for _ in range(6):
        product = a @ z
        z = z @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    theirs = layer.kernel(q, x) @ (root * z * root.mT) @ layer.kernel(x, k) @ v
    return {"difference": difference(layer.mix(q, k, v, SIZE), theirs)}


@torch.no_grad()
def soft_landmarks(name: str) -> Row:
    """A convolution of the size of a cell, one weight per position."""
    layer, q, k, v = inputs(name, grid=GRID)
    scale, cell = layer.head_dim**0.25, SIDE // GRID

    def convolved() -> Tensor:
        filter_ = torch.nn.Conv2d(layer.head_dim, layer.head_dim, cell, cell, bias=False).double()
        x = filter_((k / scale).flatten(0, 1).mT.unflatten(2, SIZE)).flatten(2).mT.unflatten(0, k.shape[:2])
        x = scale * F.gelu(layer.landmark_norm(x))
        return layer.kernel(q, x) @ layer.inverse(layer.kernel(x, x)) @ layer.kernel(x, k) @ v

    first, second = convolved(), convolved()
    return {"difference": difference(layer.mix(q, k, v, SIZE), first), "between_draws": difference(second, first)}


@torch.no_grad()
def soft_plus_plus_start() -> Row:
    """One start for all images: 2 / the largest squared row sum of the batch, with W in between."""
    layer, q, k, v = inputs("soft++", grid=GRID)
    x = layer.points(q, k, SIZE, None)
    w = layer.kernel(x, x)
    root = w.sum(-1, keepdim=True).rsqrt()
    rows = w.abs().sum(-1)
    z = w.mT / (rows.amax() * w.abs().sum(-2).amax())
    for _ in range(layer.iterations):
        z = z @ (2 * torch.eye(w.shape[-1], dtype=w.dtype) - w @ z)
    theirs = layer.kernel(q, x) @ (root * z * root.mT) @ layer.kernel(x, k) @ v
    return {"difference": difference(layer.mix(q, k, v, SIZE), theirs)}


@torch.no_grad()
def nystromformer(segments: bool) -> Row:
    """Landmarks of consecutive tokens, or one start of the pseudo-inverse for all images."""
    layer, q, k, v = inputs("nystromformer", grid=GRID)
    ours = layer.mix(q, k, v, SIZE)
    means: Callable[[Tensor], Tensor] = lambda x: x.unflatten(2, (GRID**2, -1)).mean(3)  # noqa: E731
    qm, km = (means(x) if segments else layer.landmarks(x, SIZE) for x in (q, k))
    first, a, last = ((x @ y.mT / layer.head_dim**0.5).softmax(-1) for x, y in ((q, km), (qm, km), (qm, k)))
    if segments:
        inverse = _pseudo_inverse(a, layer.iterations)
    else:
        identity = torch.eye(a.shape[-1], dtype=a.dtype)
        inverse = a.mT / (a.sum(-1).amax() * a.sum(-2).amax())
        for _ in range(layer.iterations):
            product = a @ inverse
            inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return {"difference": difference(ours, first @ inverse @ last @ v)}


@torch.no_grad()
def performer_draws() -> Row:
    """Another Omega, as the authors' code draws one again every 1,000 steps of training."""
    layer, q, k, v = inputs("performer")
    ours = layer.mix(q, k, v, SIZE)
    layer.omega.copy_(_draw_orthogonal(2, 128, layer.head_dim, seed=12345).double())
    return {"difference": difference(ours, layer.mix(q, k, v, SIZE))}


@torch.no_grad()
def linear_eps() -> Row:
    """1e-6 is added to the denominator of the authors' code, which adds up N features."""
    layer, q, k, v = inputs("linear")
    phi_q, phi_k = layer.features(q, k, SIZE, None)
    theirs = phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(-2, keepdim=True).mT + 1e-6)
    return {"difference": difference(layer.mix(q, k, v, SIZE), theirs)}


@torch.no_grad()
def rotary(name: str) -> Row:
    """Rotary positions, which no paper but ours has: what they change."""
    layer, q, k, v = inputs(name)
    plain = layer.mix(q, k, v, SIZE)
    layer.rope = True
    return {"difference": difference(layer.mix(q, k, v, SIZE), plain)}


@torch.no_grad()
def local(name: str) -> Row:
    """The convolution of the slot, over the global branch."""
    layer, q, k, v = inputs(name)
    mixed = layer.mix(q, k, v, SIZE)
    return {"difference": float(f"{(layer.local(v, SIZE).norm() / mixed.norm()).item():.2g}")}


CASES: list[tuple[str, str, Callable[[], Row]]] = [
    ("soft", "landmarks by a 3 x 3 convolution", lambda: soft_landmarks("soft")),
    ("soft++", "landmarks by a 3 x 3 convolution", lambda: soft_landmarks("soft++")),
    ("soft++", "a start for each matrix", soft_plus_plus_start),
    ("skyformer", "landmarks are averages", skyformer_landmarks),
    ("skyformer", "steps of second order", skyformer_steps),
    ("nystromformer", "landmarks over a grid", lambda: nystromformer(segments=True)),
    ("nystromformer", "a start for each matrix", lambda: nystromformer(segments=False)),
    ("performer", "one draw", performer_draws),
    ("linear", "no eps in the denominator", linear_eps),
    *(
        (name, "rotary positions", lambda name=name: rotary(name))
        for name in ATTENTIONS
        if name not in ("laplacian", "ablation")
    ),
    *(
        (name, "local branch over the global one", lambda name=name: local(name))
        for name in ("soft", "soft++", "nystromformer", "inline")
    ),
]

if __name__ == "__main__":
    main()
