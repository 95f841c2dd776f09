"""Sequences by index: reproducible streams, the same batches for any number of workers, and bad files named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laplacianformer._util.errors import InputError
from laplacianformer.data._order import Order
from laplacianformer.sequences import Wanted, open_sequences, train
from laplacianformer.sequences._batches import SequenceBatch, held_out_batches, pad, training_batches
from laplacianformer.sequences._sources import form_of
from tests.sequences import helpers
from tests.training.helpers import image_folder

GENERATED = {
    "listops": Wanted("listops", "train", 60, samples=12, shortest=10),
    "pathfinder": Wanted("pathfinder", "train", 1024, samples=6),
    "recall": Wanted("recall", "train", 17, samples=6),
}


def all_of(wanted: Wanted) -> list[tuple[bytes, int]]:
    opened = open_sequences(wanted)
    return [(opened.read(index)[0].tobytes(), opened.read(index)[1]) for index in range(len(opened))]


@pytest.mark.parametrize("task", GENERATED)
def test_a_seed_gives_the_same_data_and_splits_differ(task: str) -> None:
    wanted = GENERATED[task]
    first = all_of(wanted)
    assert first == all_of(wanted)
    others = [
        all_of(Wanted(**{**vars(wanted), **changed}))
        for changed in ({"split": "validation"}, {"split": "test"}, {"seed": 1})
    ]
    for index, other in enumerate(others):
        assert not {tokens for tokens, _ in first} & {tokens for tokens, _ in other}
        assert all(other != another for another in others[:index])


def test_more_samples_begin_with_the_same() -> None:
    wanted = GENERATED["listops"]
    assert all_of(Wanted(**{**vars(wanted), "samples": 20}))[:12] == all_of(wanted)


def batches(wanted: Wanted, workers: int) -> list[SequenceBatch]:
    training = training_batches(open_sequences(wanted), Order(len(open_sequences(wanted)), 3, 5), workers)
    return [*training.epoch(1, 1), *training.epoch(2)]


@pytest.mark.parametrize("task", GENERATED)
def test_batches_do_not_depend_on_the_number_of_workers(task: str) -> None:
    alone, helped = batches(GENERATED[task], 0), batches(GENERATED[task], 2)
    assert len(alone) == len(helped) > 2
    for one, two in zip(alone, helped, strict=True):
        assert torch.equal(one.tokens, two.tokens)
        assert torch.equal(one.targets, two.targets)
        assert (one.mask is None) == (two.mask is None)


def test_padding_is_masked_and_there_is_no_mask_without_padding() -> None:
    tokens, mask = pad([np.array([3, 4]), np.array([5])])
    assert tokens.tolist() == [[3, 4], [5, 0]]
    assert mask is not None
    assert mask.tolist() == [[True, True], [True, False]]
    assert pad([np.array([3]), np.array([5])])[1] is None
    pairs, masks = pad([(np.array([1]), np.array([2, 3]))])
    assert (pairs.shape, masks.tolist()) == ((1, 2, 2), [[[True, False], [True, True]]])


# ---- texts ----


def test_texts_are_bytes_of_any_encoding_and_cut(tmp_path: Path) -> None:
    root = helpers.text_folder(tmp_path / "texts")
    (root / "train" / "neg" / "0.txt").write_bytes(b"\xff\xfe\x00abc")
    (root / "train" / "unsup").mkdir()
    opened = open_sequences(Wanted("text", "train", 4, str(root)))
    assert opened.classes == ("neg", "pos")
    assert len(opened) == 24
    tokens, label = opened.read(0)
    assert (tokens.tolist(), label) == ([256, 255, 1, 98], 0)
    held_out = open_sequences(Wanted("text", "validation", 4000, str(root)))
    assert len(held_out) == 12, "test stands in for validation"
    spread = open_sequences(Wanted("text", "train", 4, str(root), samples=6))
    assert [spread.read(index)[1] for index in range(6)] == [0, 0, 0, 1, 1, 1]


def test_pairs_are_read_from_their_lines(tmp_path: Path) -> None:
    root = helpers.pair_folder(tmp_path / "pairs")
    opened = open_sequences(Wanted("retrieval", "train", 10, str(root)))
    lines = (root / "pairs.train.tsv").read_bytes().splitlines()
    assert len(opened) == len(lines) == 16
    for index in (11, 0, 15):
        (first, second), label = opened.read(index)
        columns = lines[index].split(b"\t")
        assert bytes((first - 1).astype(np.uint8)) == columns[3][:10]
        assert bytes((second - 1).astype(np.uint8)) == columns[4][:10]
        assert label == float(columns[0])
    assert len(open_sequences(Wanted("retrieval", "validation", 10, str(root)))) == 6


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\ta\tb\ttext\n", r"pairs\.train\.tsv, line 17: 4 columns, expected 5 between tabs: label, id, id, texts"),
        ("1\ta\tb\tc\td\te\n", r"line 17: 6 columns"),
        ("maybe\ta\tb\tc\td\n", r"line 17: the label 'maybe', expected 0 or 1"),
        ("1\ta\tb\t\td\n", r"line 17: column 4 is empty, expected a text"),
        ("1\ta\tb\tc\t\n", r"line 17: column 5 is empty"),
        ("\n", r"line 17: 1 columns"),
    ],
)
def test_a_wrong_line_is_named_with_its_file(line: str, message: str, tmp_path: Path) -> None:
    root = helpers.pair_folder(tmp_path / "pairs")
    with (root / "pairs.train.tsv").open("a") as file:
        file.write(line)
    with pytest.raises(InputError, match=message):
        open_sequences(Wanted("retrieval", "train", 10, str(root)))


def test_empty_and_missing_texts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        open_sequences(Wanted("text", "train", 10, str(tmp_path / "nowhere")))
    with pytest.raises(InputError, match="reads texts: give --data DIR"):
        open_sequences(Wanted("text", "train", 10))
    root = helpers.text_folder(tmp_path / "texts")
    with pytest.raises(InputError, match=r"texts has no train or training: expected .*texts/train\.tsv"):
        open_sequences(Wanted("retrieval", "train", 10, str(root)))
    (root / "train" / "pos" / "3.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"train/pos/3\.txt is empty: expected a text of at least one byte"):
        open_sequences(Wanted("text", "train", 10, str(root)))
    (root / "train" / "other").mkdir()
    with pytest.raises(InputError, match=r"train/other has no \*\.txt files"):
        open_sequences(Wanted("text", "train", 10, str(root)))
    (tmp_path / "train.tsv").write_bytes(b"")
    with pytest.raises(InputError, match=r"train\.tsv is empty: expected lines of label"):
        open_sequences(Wanted("retrieval", "train", 10, str(tmp_path)))


# ---- images ----


def test_images_are_grey_pixel_by_pixel(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images")
    opened = open_sequences(Wanted("image", "train", 256, str(root)))
    tokens, label = opened.read(0)
    with Image.open(opened.name(0)) as image:
        expected = np.asarray(image.convert("L"))
    assert tokens.reshape(16, 16).tolist() == expected.tolist()
    assert opened.classes[label] == "class0"
    assert len(open_sequences(Wanted("image", "train", 64, str(root))).read(0)[0]) == 64, "resized"


def test_what_can_not_be_read_does_not_count_and_is_named(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images")
    broken = root / "val" / "class1" / "0.png"
    broken.write_bytes(b"no image")
    opened = open_sequences(Wanted("image", "validation", 256, str(root)))
    found = list(held_out_batches(opened, 5, 0))
    assert sum(int((batch.targets >= 0).sum()) for batch in found) == 11
    assert [str(broken) in line for batch in found for line in batch.corrupt] == [True]
    (root / "train" / "class0" / "0.png").write_bytes(b"no image")
    training = training_batches(open_sequences(Wanted("image", "train", 256, str(root))), Order(24, 24, 0), 0)
    (batch,) = training.epoch(0)
    assert len(batch.corrupt) == 1
    assert batch.tokens.shape == (24, 256)


def test_a_run_on_files_that_are_all_broken_stops_in_one_line(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images")
    for path in root.glob("*/*/*.png"):
        path.write_bytes(b"no image")
    data = {"task": "image", "root": str(root), "length": 64, "train_samples": None, "val_samples": None}
    with pytest.raises(InputError, match=r"more than 1\.000% of 24 samples \(data\.corrupt_limit\) can't be read"):
        train(helpers.tiny(tmp_path, data=data), tmp_path / "run")


def test_parts_of_processes_make_up_all(tmp_path: Path) -> None:
    opened = open_sequences(Wanted("retrieval", "validation", 10, str(helpers.pair_folder(tmp_path / "pairs", val=5))))
    parts = [list(held_out_batches(opened, 2, 0, rank, 2, form_of("retrieval"))) for rank in range(2)]
    assert [sum(len(batch.targets) for batch in part) for part in parts] == [3, 3]
    assert sum(int((batch.targets >= 0).sum()) for part in parts for batch in part) == 5
    assert {batch.tokens.ndim for part in parts for batch in part} == {3}
