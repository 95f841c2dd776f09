"""Open a data set: what `[READER:]DIR` and a split mean, in training and in evaluation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import timm.data

from laplacianformer._util.errors import InputError
from laplacianformer.data import _indexed as indexed
from laplacianformer.data._folders import open_folder
from laplacianformer.data._indexed import Images, ItemImages, ReaderImages, Spread
from laplacianformer.data._shards import Shards, Stream, TimmStream, check_root, joined

_TRAINING = ("train", "training")
_HELD_OUT = ("val", "valid", "validation", "eval", "evaluation")
_STREAMS = ("wds/", "tfds/", "hfids/")
_TIMM = ("torch/", "hfds/", *_STREAMS)
_TORCHVISION_FOLDER = ("torch/image_folder", "torch/folder")
Once = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True)
class Source:
    """The images of one split, before they are opened."""

    reader: str  # folder (also a tar), digits, idx, or timm's torch/, hfds/, wds/, hfids/, tfds/ names
    root: str | None
    split: str
    num_classes: int | None = None  # where the reader has no names for them
    samples: int | None = None  # the most to take; for a stream that doesn't know it, its number of images
    inside: tuple[str, ...] = ()  # classes whose folders may be in root (or a tar) itself, not in a folder of the split
    allow_pipes: bool = False  # whether the root of a wds/ reader may be a shell command, pipe:COMMAND

    @property
    def training(self) -> bool:
        """Whether it is the split for training."""
        return self.split in _TRAINING


def parse(text: str) -> tuple[str | None, str | None]:
    """Reader and root of `[READER:]DIR`, each None where it isn't given."""
    reader, colon, root = text.partition(":")
    if Path(text).exists() or (not colon and text != "digits"):
        return None, text
    return reader, root or None


def in_this_process(make: Callable[[], Any]) -> Any:
    """The `once` of a single process."""
    return make()


def open_images(source: Source, once: Once = in_this_process) -> Images | Stream:
    """The images of a split.

    once: calls a function in one process and returns its result in all, so that a folder is listed once.
    """
    images = _open(source, once)
    return images if source.samples is None or isinstance(images, Stream) else Spread(images, source.samples)


def _open(source: Source, once: Once) -> Images | Stream:
    reader, root = source.reader, source.root
    if reader == "digits":
        return indexed.digits(training=source.training)
    if reader not in ("folder", "idx") and not reader.startswith(_TIMM):
        raise InputError(f"unknown reader {reader!r}: expected folder, digits, idx, {'NAME, '.join(_TIMM)}NAME")
    if root is None and not reader.startswith(("hfds/", "hfids/", "tfds/")):
        raise InputError(f"the reader {reader!r} needs a folder: give --data DIR")
    if reader == "folder" or reader in _TORCHVISION_FOLDER:
        return once(partial(_folder, source))
    if reader.startswith(_STREAMS):
        return _stream(source)
    if root is not None and not Path(root).exists():
        raise InputError(f"there is no {root}: give --data a folder that exists")
    if reader == "idx":
        return indexed.idx(Path(str(root)), source.num_classes, training=source.training)
    dataset = _create(source)
    if hasattr(dataset, "reader"):
        return ReaderImages(dataset.reader, _named(dataset.reader) or _numbered(source))
    return ItemImages(dataset, getattr(dataset, "classes", ()) or _numbered(source), reader)


# ---- folders ----


def _folder(source: Source) -> Images:
    """root/train/CLASS/image, or the tar files root/train.tar and root/val.tar."""
    path = _split_path(Path(str(source.root)), source)
    return open_folder(path, like_torchvision=source.reader in _TORCHVISION_FOLDER)


def _split_path(root: Path, source: Source) -> Path:
    """The folder or tar of the split; the root itself if classes may be inside it and no split has a folder."""
    if not root.exists():
        raise InputError(f"there is no {root}: give --data a folder that exists")
    names = [source.split]
    if source.split in _TRAINING:
        names += _TRAINING
    elif source.split in _HELD_OUT:
        names += [*_HELD_OUT, "test"]

    def found(names: Iterable[str]) -> list[Path]:
        paths = (root / f"{name}{end}" for end in ("", ".tar") for name in names if name not in source.inside)
        return [path for path in paths if path.exists()]

    if fitting := found(names):
        return fitting[0]
    others = found([*_TRAINING, *_HELD_OUT, "test"])
    if source.inside and not others:
        return root
    instead = f", but {others[0].name}" if others else ""
    wanted = " or ".join(dict.fromkeys(names))
    raise InputError(f"{root} has no {wanted} folder (or .tar){instead}: expected {names[0]}/CLASS/image")


# ---- timm's readers ----


def _stream(source: Source) -> Stream:
    if source.reader.startswith("wds/"):
        check_root(str(source.root), allow_pipes=source.allow_pipes)  # already timm's reader would run a command
    create = partial(_create, source, num_samples=source.samples, input_img_mode="")
    reader = create(is_training=False, seed=0).reader
    samples = source.samples or reader.num_samples or None
    if not source.reader.startswith("wds/"):
        return TimmStream(create, _numbered(source), samples, source.reader)
    if reader.split_info.alt_label:
        raise InputError(f"{source.reader} has its labels under alt_label={reader.split_info.alt_label}: expected cls")
    return Shards(joined(str(source.root), reader.split_info.filenames), _numbered(source), samples)


def _create(source: Source, **options: Any) -> Any:
    try:
        return timm.data.create_dataset(source.reader, source.root, split=source.split, **options)
    except (AssertionError, ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"can't open {source.reader} ({source.split}) in {source.root}: {reason}") from None


def _named(reader: Any) -> tuple[str, ...]:
    """The classes of a reader in the order of their indices, if it has names (under another attribute for a tar)."""
    names = getattr(reader, "class_to_idx", None) or getattr(reader, "class_name_to_idx", None) or {}
    return tuple(sorted(names, key=names.__getitem__))


def _numbered(source: Source) -> tuple[str, ...]:
    if source.num_classes is None:
        raise InputError(f"{source.reader} doesn't say how many classes there are: give data.num_classes=N")
    return tuple(str(number) for number in range(source.num_classes))
