"""Images that come in an order of their own: WebDataset shards, and other streams of timm."""

import io
import os
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from PIL import Image
from torch.utils.data import get_worker_info

from laplacianformer._util.errors import InputError
from laplacianformer.data import _images as images
from laplacianformer.data._indexed import checked
from laplacianformer.data._order import mix

_BUFFER, _FIRST = 8192, 2048  # samples in the shuffle buffer, and samples read before the first one is yielded
_ENDINGS = ("jpg", "jpeg", "png", "webp")
_URL = re.compile(r"[a-z][a-z0-9+]*://[^\s'\"`$\\]*")  # older versions of webdataset quote it for a shell
_PLAIN = re.compile(r"[\w./-]+")  # a name that no shell takes for anything else


class Part(NamedTuple):
    """The reader of a part of a stream: one of the workers of one of the processes."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1


def part_of_worker(rank: int, world: int) -> Part:
    """The reader that calls this: a worker of a DataLoader, or the process itself."""
    worker = get_worker_info()
    return Part(rank, world, worker.id, worker.num_workers) if worker else Part(rank, world)


class _Broken(NamedTuple):
    """Takes the place of the rest of a stream that breaks off."""

    name: str
    reason: str


class Stream(ABC):
    """Samples one after the other. `read` returns the RGB image of one and its label, or raises; `name` identifies it.

    Worker processes get a pickled copy.
    """

    classes: tuple[str, ...]
    samples: int | None  # of all processes together, where it is known
    workers_help: bool  # in evaluation, where each goes through the whole stream and decodes its part

    @abstractmethod
    def shuffled(self, seed: int, one_pass: int, part: Part) -> Iterator[Any]:
        """One pass over the samples of this part, the same samples in each pass. All parts are given the same seed."""

    @abstractmethod
    def stored(self) -> Iterator[Any]:
        """All samples, in the order in which they are stored."""

    @abstractmethod
    def read(self, sample: Any) -> tuple[Image.Image, int]: ...

    @abstractmethod
    def name(self, sample: Any) -> str: ...


class Shards(Stream):
    """tar files of images (KEY.jpg) and labels (KEY.cls), distributed over processes, and by these over workers."""

    workers_help = True

    def __init__(self, urls: Sequence[str], classes: Sequence[str], samples: int | None) -> None:
        self.urls, self.classes, self.samples = tuple(urls), tuple(classes), samples
        for url in urls:
            if not _scheme(url) and not os.path.exists(url):
                raise InputError(f"there is no {url}: expected a WebDataset shard (.tar)")

    def shuffled(self, seed: int, one_pass: int, part: Part) -> Iterator[Any]:
        import webdataset

        urls = random.Random(seed).sample(self.urls, len(self.urls))[part.rank :: part.world]
        chance = random.Random(mix(seed, one_pass, part.rank, part.worker))
        shuffle = webdataset.shuffle(_BUFFER, initial=_FIRST, rng=chance)
        return iter(shuffle(self._samples(urls[part.worker :: part.workers])))

    def stored(self) -> Iterator[Any]:
        return self._samples(self.urls)

    def _samples(self, urls: Iterable[str]) -> Iterator[Any]:
        return chain.from_iterable(_shard(url) for url in urls)

    def read(self, sample: Any) -> tuple[Image.Image, int]:
        if isinstance(sample, _Broken):
            raise InputError(sample.reason)
        ending = next((ending for ending in _ENDINGS if ending in sample), None)
        if ending is None or "cls" not in sample:
            found = ", ".join(key for key in sample if not key.startswith("__"))
            raise InputError(f"expected an image ({', '.join(_ENDINGS)}) and a label (cls), found {found}")
        return images.read(io.BytesIO(sample[ending])), checked(sample["cls"], self.classes)

    def name(self, sample: Any) -> str:
        return sample.name if isinstance(sample, _Broken) else f"{sample['__url__']}/{sample['__key__']}"


def check_root(root: str, *, allow_pipes: bool) -> None:
    """Raise unless it is a local folder, a URL or, if that is allowed, the beginning of a command after `pipe:`."""
    scheme = _scheme(root)
    if scheme == "pipe" and not allow_pipes:
        raise InputError(f"{root!r} would run a shell command: if that is meant, give it as --data with --allow-pipes")
    if scheme not in ("", "pipe") and not _URL.fullmatch(root):
        raise InputError(f"{root!r} is neither a folder nor a URL")


def _scheme(url: str) -> str:
    """As webdataset finds it, which takes " PIPE:" for a pipe, too."""
    try:
        return urlsplit(url).scheme
    except ValueError as error:
        raise InputError(f"{url!r} is neither a folder nor a URL: {error}") from None


def joined(root: str, names: Iterable[str]) -> list[str]:
    """Shards by the root, which was checked, and their names, which are never a command or a part of one."""
    names, scheme = list(names), _scheme(root)
    unfit = next((name for name in names if (not root or scheme) and not _PLAIN.fullmatch(name)), None)
    if unfit is not None:
        raise InputError(f"the shard {unfit!r}: expected letters, digits and any of . _ - / after {root!r}")
    return [os.path.join(root, name) for name in names]


def _shard(url: str) -> Iterator[Any]:
    import webdataset

    try:
        yield from webdataset.tarfile_to_samples()([{"url": url}])
    except Exception as error:  # whatever a broken or missing tar makes the library raise
        yield _Broken(url, f"the shard breaks off: {error}")


class TimmStream(Stream):
    """A data set that timm streams (tfds/, hfids/) and distributes over processes and workers by itself."""

    workers_help = False

    def __init__(self, create: Callable[..., Any], classes: Sequence[str], samples: int | None, title: str) -> None:
        """`create(is_training=, seed=)` returns the data set of timm."""
        self.create, self.classes, self.samples, self.title = create, tuple(classes), samples, title

    def shuffled(self, seed: int, one_pass: int, part: Part) -> Iterator[Any]:
        return self._samples(self.create(is_training=True, seed=mix(seed, one_pass) % 2**31), part)

    def stored(self) -> Iterator[Any]:
        return self._samples(self.create(is_training=False, seed=0), Part())

    def _samples(self, dataset: Any, part: Part) -> Iterator[Any]:
        # Set here because a worker process that was not forked doesn't know its rank.
        dataset.reader.dist_rank, dataset.reader.dist_num_replicas = part.rank, part.world
        try:
            yield from enumerate(dataset)
        except Exception as error:  # whatever an image that can't be decoded makes the library raise
            yield _Broken(self.title, f"the stream breaks off: {error}")

    def read(self, sample: Any) -> tuple[Image.Image, int]:
        if isinstance(sample, _Broken):
            raise InputError(sample.reason)
        _, (image, target) = sample
        image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        return images.read(image), checked(target, self.classes)

    def name(self, sample: Any) -> str:
        return sample.name if isinstance(sample, _Broken) else f"{self.title}[{sample[0]}]"
