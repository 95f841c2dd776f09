"""What experiments look at: held-out images, a trained model, and the queries and keys in any model of timm."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import timm
import torch
from torch import Tensor, nn

from laplacianformer import assets as shipped
from laplacianformer._util.errors import InputError
from laplacianformer.attention import GridAttention
from laplacianformer.data._evaluation import EvaluationImages, InputReader
from laplacianformer.data._shards import Stream
from laplacianformer.data._sources import Source, open_images, parse
from laplacianformer.experiments.frame import Settings
from laplacianformer.weights import load_weights

CIFAR10 = {
    "size": (3, 32, 32),
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2470, 0.2435, 0.2616),
    "interpolation": "bicubic",
    "crop_pct": 1.0,
}


def held_out_images(settings: Settings, count: int, preprocessing: dict[str, Any]) -> Tensor:
    """Preprocessed images, spread over the classes: of CIFAR-10 or ImageNet if given, else handwritten digits."""
    reader, root = parse(settings.imagenet or settings.cifar10 or "digits")
    opened = open_images(Source(reader or "folder", root, "validation", samples=count))
    if isinstance(opened, Stream):
        raise InputError(f"{settings.imagenet or settings.cifar10}: expected a folder of images")
    images = EvaluationImages(opened, InputReader(preprocessing), 0, 1)
    return torch.stack([images[index][0] for index in range(len(images))])


def trained_nano(settings: Settings) -> tuple[nn.Module, dict[str, Any], str]:
    """A model, its preprocessing and a description: --weights, the weights in the package, or else random ones."""
    path = settings.weights or (shipped.PATH if shipped.PATH.is_file() else None)
    if path is not None:
        loaded = load_weights(path)
        return loaded.model, loaded.input, f"weights {path.name}"
    if not settings.quick:
        raise InputError(
            "this experiment inspects trained weights, and this installation has none: give --weights FILE"
        )
    torch.manual_seed(0)
    arguments = {"attention_args": {"grid": 4, "gain": 4.0}, "num_classes": 10}
    return timm.create_model("laplacianformer_nano", **arguments).eval(), CIFAR10, "random weights"


@contextmanager
def queries_and_keys(model: nn.Module) -> Iterator[list[tuple[str, Tensor, Tensor]]]:
    """A list that collects, within the block, queries and keys of each attention layer that runs: (B, heads, N, d).

    Of the layers of this package, they are what `mix` is given: normalised where the layer normalises them. Other
    layers are found by their heads and one projection `qkv`, as in ViT, DeiT and Swin, or `q` and `kv`, as in PVT.
    Rotary positions, which are applied later, are not included.
    """
    seen: list[tuple[str, Tensor, Tensor]] = []
    handles: list[Any] = []
    for name, layer in model.named_modules():
        if isinstance(layer, GridAttention):
            handles += _record_projected(name, layer, seen)
        elif hasattr(layer, "num_heads") and hasattr(layer, "qkv"):
            handles += _record_joint(name, layer, seen)
        elif hasattr(layer, "num_heads") and hasattr(layer, "q") and hasattr(layer, "kv"):
            handles += _record_separate(name, layer, seen)
    if not handles:
        raise InputError(f"{type(model).__name__} has no attention layers with a projection qkv, or q and kv")
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _record_projected(name: str, layer: GridAttention, seen: list[tuple[str, Tensor, Tensor]]) -> list[Any]:
    def record(_: Any, given: tuple[Any, ...]) -> None:
        q, k, _v = layer.project(*given[:2])
        seen.append((name, q, k))

    return [layer.register_forward_pre_hook(record)]


def _record_joint(name: str, layer: Any, seen: list[tuple[str, Tensor, Tensor]]) -> list[Any]:
    def record(_: Any, __: Any, out: Tensor) -> None:
        q, k, _v = _heads(layer, out, 3)
        seen.append((name, q, k))

    return [layer.qkv.register_forward_hook(record)]


def _record_separate(name: str, layer: Any, seen: list[tuple[str, Tensor, Tensor]]) -> list[Any]:
    queries: list[Tensor] = []

    def record_queries(_: Any, __: Any, out: Tensor) -> None:
        queries.append(_heads(layer, out, 1)[0])

    def record_keys(_: Any, __: Any, out: Tensor) -> None:
        seen.append((name, queries.pop(), _heads(layer, out, 2)[0]))

    return [layer.q.register_forward_hook(record_queries), layer.kv.register_forward_hook(record_keys)]


def _heads(layer: Any, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
    """(B, N, parts * heads * d) -> parts of (B, heads, N, d)."""
    return projected.unflatten(-1, (parts, layer.num_heads, -1)).movedim(-3, 0).transpose(-2, -3).unbind(0)
