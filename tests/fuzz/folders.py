"""Generated folders of data: texts and tables, label maps with what they mean, trees of images with links, and the
metrics of a run that is resumed."""

import contextlib
import csv
import io
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from laplacianformer import segmentation, sequences
from laplacianformer._util.errors import InputError
from laplacianformer._util.text import printable
from laplacianformer.data import _folders as image_folders
from laplacianformer.segmentation._images import ImageFiles, _same_name
from laplacianformer.sequences import _texts as texts
from laplacianformer.training._metrics import Metrics
from tests.fuzz import nasty
from tests.fuzz.files import Case, Samples, dumped, expecting
from tests.fuzz.outcome import SilentlyWrong
from tests.helpers import picture

_LENGTH = 40  # tokens
_EXPRESSION = "[MAX 4 3 [MIN 2 3 ] 1 [SM 9 9 [MED 1 2 5 ] ] ]"


def text_data(rng: random.Random, samples: Samples) -> Case:
    """A table of pairs, a folder of texts, or an expression."""
    return rng.choice([table, text_folder, expression])(rng, samples)


def table(rng: random.Random, samples: Samples) -> Case:
    """Lines with other columns, labels and bytes. What is accepted is what the file says."""
    rows = [[b"1.0", b"a", b"b", b"one text", b"another text"], [b"0", b"", b"", b"\xff\x00", b"x" * 100]] * 2
    for _ in range(rng.choice([0, 1, 1, 2])):
        row = rng.choice(rows)
        kind, column = rng.random(), rng.randrange(len(row)) if row else 0
        if kind < 0.2:
            del row[column : column + 1]
        elif kind < 0.4:
            row.insert(column, _bytes(rng))
        else:
            row[column : column + 1] = [_bytes(rng)]
    data = rng.choice([b"\n", b"\n", b"\r\n"]).join(b"\t".join(row) for row in rows)
    data = nasty.damage(rng, data) if rng.random() < 0.4 else data

    def run() -> None:
        with _folder(rng, samples) as root:
            (root / "train.tsv").write_bytes(data)
            with expecting(InputError):
                found = texts.TextPairs(root, "train", _LENGTH)
                for index in range(len(found)):
                    pair, label = found.read(index)
                    said = [bytes((tokens - 1).astype(np.uint8)) for tokens in pair]
                    columns = data.split(b"\n")[index].rstrip(b"\r").split(b"\t")
                    if label != float(columns[0]) or said != [text[:_LENGTH] for text in columns[3:]]:
                        raise SilentlyWrong(f"line {index + 1} of {data!r}: {said}, {label}")

    return run


def text_folder(rng: random.Random, samples: Samples) -> Case:
    """Texts that are empty, not text, folders, or outside of the classes."""
    files = {f"{name}/{number}.txt": b"some text" for name in ("pos", "neg") for number in range(2)}
    for _ in range(rng.choice([0, 1, 1, 2])):
        name = rng.choice(
            ["pos/0.txt", "pos/deeper/2.txt", "neg/1.TXT", "unsup/0.txt", "stray.txt", "new/a.txt", "x/a.dat"]
        )
        files[name] = _bytes(rng)
    folder = rng.choice(["", "", "pos/5.txt", "empty"])

    def run() -> None:
        with _folder(rng, samples) as root:
            for name, data in files.items():
                (root / "train" / name).parent.mkdir(parents=True, exist_ok=True)
                (root / "train" / name).write_bytes(data)
            (root / "train" / folder).mkdir(parents=True, exist_ok=True)
            with expecting(InputError):
                found = texts.TextFolder(root, "train", _LENGTH)
                for index in range(len(found)):
                    tokens, label = found.read(index)
                    data = Path(found.name(index)).read_bytes()[:_LENGTH]
                    first = Path(found.name(index)).relative_to(root / "train").parts[0]
                    if bytes((tokens - 1).astype(np.uint8)) != data or found.classes[label] != first:
                        raise SilentlyWrong(f"{found.name(index)}: {tokens}, {found.classes[label]}")

    return run


def expression(rng: random.Random, samples: Samples) -> Case:
    """Lists of ListOps with other tokens, given to the encoder: a ranking, or the reason why there is none."""
    tokens = _EXPRESSION.split()
    for _ in range(rng.choice([0, 1, 1, 2])):
        tokens[rng.randrange(len(tokens))] = rng.choice(["[MIN", "]", "", "[", "10", "(", "7", nasty.text(rng)])
    text = " ".join(tokens) * rng.choice([1, 1, 1, 10])

    def run() -> None:
        with expecting(InputError):
            loaded = sequences.load_encoder(samples.folder / "encoder.safetensors")
            (found,) = sequences.predict(loaded, [text])
            if found.failure:
                raise InputError(found.failure.encode(errors="backslashreplace").decode())
            given = text.replace("(", " ").replace(")", " ").replace("]", " ] ").split()
            if len(given) > loaded.model.length or abs(sum(value for _, value in found.ranking)) > 1.001:
                raise SilentlyWrong(f"{text!r}: {found}")

    return run


def label_data(rng: random.Random, samples: Samples) -> Case:
    """A YAML file of labels with other values, and a label map of other values, modes and sizes, or damaged."""
    tree: Any = {
        "ignore": rng.choice([9, [9, 255], None]),
        "classes": ["sky", "tree", {"name": "road", "value": 7, "colour": [1, 2, 3]}],
    }
    if rng.random() < 0.5:
        tree = nasty.change(rng, tree)
    try:
        text = rng.choice([dumped, lambda tree: yaml.safe_dump(tree, sort_keys=False)])(tree)
    except (ValueError, RecursionError):
        text = dumped(tree)
    stated = text.encode(errors="surrogatepass")
    stated = nasty.damage(rng, stated) if rng.random() < 0.15 else stated
    values = np.array([[rng.choice([0, 1, 7, 9]) for _ in range(8)] for _ in range(6)], np.uint8)
    if rng.random() < 0.2:
        values[rng.randrange(6), rng.randrange(8)] = rng.randrange(256)
    drawn = Image.fromarray(values)
    drawn = rng.choice(
        [drawn, drawn, drawn.convert("I;16"), drawn.convert("RGB"), drawn.resize((8, 5), 0), drawn.rotate(90)]
    )
    file = io.BytesIO()
    drawn.save(file, rng.choice(["PNG", "PNG", "PNG", "GIF" if drawn.mode == "L" else "PNG"]))
    data = nasty.damage(rng, file.getvalue()) if rng.random() < 0.3 else file.getvalue()

    def run() -> None:
        with _folder(rng, samples) as root:
            (root / "labels.yaml").write_bytes(stated)
            for name in ("images", "maps"):
                (root / name).mkdir()
            picture(1, (8, 6)).save(root / "images" / "1.png")
            (root / "maps" / "1.png").write_bytes(data)
            with expecting(InputError):
                labels = segmentation.read_labels(root / "labels.yaml")
                image, indices = ImageFiles(root / "images", root / "maps", labels, _same_name).read(0)
                known = (indices < len(labels.names)) | (indices == segmentation.IGNORED)
                if indices.shape != image.size[::-1] or not known.all():
                    raise SilentlyWrong(f"{indices} of {image.size} for {labels}")

    return run


def folder_tree(rng: random.Random, samples: Samples) -> Case:
    """A folder or a tar of classes."""
    return rng.choice([folder_of_classes, folder_of_classes, tar_of_classes])(rng, samples)


def tar_of_classes(rng: random.Random, samples: Samples) -> Case:
    """One class or more, below outer folders and with subfolders: each image is of its class, or the tar is refused."""
    outer = rng.choice(["", "", "train", "some", "some/train", "./train", "images"])
    classes = rng.choice([["a"], ["a"], ["a", "b"], ["a", "b", "train"], [os.fsdecode(b"\xff"), "日本"]])
    deeper = rng.choice([[""], ["", "2023"], ["2023"], ["2023", "2024"], ["2024/1", "2024/2"]])
    files = [(name, f"{outer}/{name}/{rng.choice(deeper)}/{index}.png") for index in range(4) for name in classes]

    def run() -> None:
        with _folder(rng, samples) as root:
            with tarfile.open(root / "train.tar", "w") as tar:
                for _, path in files:
                    (root / "image").write_bytes(samples.picture.read_bytes())
                    tar.add(root / "image", os.path.normpath(path).lstrip("/"))
            with expecting(InputError, shown=printable):
                found = image_folders.open_folder(root / "train.tar")
                labels = sorted(found.classes[found.read(index)[1]] for index in range(len(found)))
                if labels != sorted(name for name, _ in files):
                    raise SilentlyWrong(f"{files} are of {labels}")

    return run


def folder_of_classes(rng: random.Random, samples: Samples) -> Case:
    """Classes with subfolders, links, pipes and files of other kinds: each real image once, in its class."""
    steps, like_torchvision = odd_entries(rng), rng.random() < 0.5

    def run() -> None:
        with _folder(rng, samples) as root:
            for index, (make, folder) in enumerate([(_image, "a"), (_image, "b"), *steps]):
                (root / folder).mkdir(parents=True, exist_ok=True)
                make(root / folder, root, index)
            with expecting(InputError, shown=printable):
                found = image_folders.open_folder(root, like_torchvision=like_torchvision)
                real = [os.path.realpath(found.name(index)) for index in range(len(found))]
                if len(real) != len(set(real)):
                    raise SilentlyWrong(f"an image is there twice: {sorted(real)}")
                for index in range(len(found)):
                    first = Path(found.name(index)).relative_to(root).parts[0]
                    _, target = found.read(index)
                    if found.classes[target] != first:
                        raise SilentlyWrong(f"{found.name(index)} is of {found.classes[target]}")

    return run


def odd_entries(rng: random.Random) -> list[tuple[Callable[[Path, Path, int], None], str]]:
    """What to make, each in some folder: images, links, pipes and other files."""
    names = ["a", "b", "a/deep", "b/1/2", "c", "", ".hidden", "ü", os.fsdecode(b"\xff"), "a\nb", "\x1b[31m"]
    return [(rng.choice(_ENTRIES), rng.choice([*names[:3], rng.choice(names)])) for _ in range(rng.choice([1, 2, 4]))]


def _image(folder: Path, root: Path, index: int) -> None:
    picture(index, (4, 4)).save(folder / f"{index}.png")


def _link(target: Callable[[Path, Path], Path]) -> Callable[[Path, Path, int], None]:
    return lambda folder, root, index: (folder / f"link{index}.png").symlink_to(target(folder, root))


_ENTRIES: list[Callable[[Path, Path, int], None]] = [
    *(_image, _image, _image),
    _link(lambda folder, root: root),  # a circle
    _link(lambda folder, root: root / "a"),
    _link(lambda folder, root: root / "a" / "0.png"),
    _link(lambda folder, root: root / "gone"),
    _link(lambda folder, root: root / "loop"),
    lambda folder, root, index: (root / f"loop{index}").symlink_to(root / f"loop{index}"),
    lambda folder, root, index: (folder / f"{index}.png").symlink_to(f"{index}.png"),
    lambda folder, root, index: os.mkfifo(folder / f"{index}.png"),
    lambda folder, root, index: (folder / f"{index}.png").mkdir(),
    lambda folder, root, index: (folder / f"{index}.png").write_bytes(b""),
    lambda folder, root, index: (folder / f"{index}.txt").write_bytes(b"no image"),
]


def metrics_file(rng: random.Random, samples: Samples) -> Case:
    """metrics.csv changed between a run and its resumption: its rows are those before the checkpoint."""
    columns = ("step", "loss", "accuracy")
    rows = [f"{step},{1 / step},{'' if step % 2 else 0.5}\n" for step in range(1, 7)]
    after = rng.randrange(1, 7)
    recorded = ",".join(columns) + "\n" + "".join(rows[:after])
    whole = recorded + "".join(rows[after:])
    other = rng.choice([nasty.damage(rng, whole.encode()), _bytes(rng), whole.encode()])
    from_checkpoint = rng.random() < 0.5

    def run() -> None:
        with _folder(rng, samples) as root:
            (root / "metrics.csv").write_bytes(other)
            with expecting(InputError):
                Metrics(root, columns, after, tensorboard=False, recorded=recorded if from_checkpoint else None)
                text = (root / "metrics.csv").read_text()
                if from_checkpoint and text != recorded:
                    raise SilentlyWrong(f"{text!r} instead of {recorded!r}")
                if any(int(row["step"]) > after for row in csv.DictReader(io.StringIO(text))):
                    raise SilentlyWrong(f"rows after step {after}: {text!r}")

    return run


def _bytes(rng: random.Random) -> bytes:
    texts = [b"", b"\0", b"\xff\xfe", b"1e400", nasty.text(rng).encode(errors="surrogatepass"), rng.randbytes(20)]
    return rng.choice(texts)


@contextlib.contextmanager
def _folder(rng: random.Random, samples: Samples) -> Any:
    folder = samples.folder / f"case-{rng.randrange(10**9)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
