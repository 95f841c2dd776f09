"""Hidden pixels: what is hidden is asked for and nothing else, and an encoder answers for each token."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from laplacianformer import sequences
from laplacianformer._util.errors import InputError
from laplacianformer.data import NO_LABEL
from laplacianformer.data._order import Order
from laplacianformer.sequences import SequenceEncoder, Wanted, open_sequences
from laplacianformer.sequences._batches import held_out_batches, training_batches
from laplacianformer.sequences._inpaint import CLASSES, HIDDEN, LEVELS, hide
from laplacianformer.sequences._sources import VOCABULARY, form_of
from tests.helpers import picture
from tests.sequences import helpers
from tests.sequences.test_encoder import MIXERS
from tests.training.helpers import image_folder

FORM = form_of("inpaint")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(2, 20))
def test_half_of_the_pixels_are_hidden_and_asked_for(seed: int, number: int, side: int) -> None:
    pixels = np.random.default_rng(number).integers(256, size=side * side)
    tokens, targets = hide(pixels, seed, number)
    hidden, levels = tokens == HIDDEN, pixels // 32
    assert hidden.sum() == side * side // 2
    assert (targets == np.where(hidden, levels, NO_LABEL)).all()
    assert (tokens[~hidden] == levels[~hidden]).all()
    assert max(levels) < LEVELS == len(CLASSES) == VOCABULARY["inpaint"] - 1


def test_what_is_hidden_depends_on_the_seed_and_the_image() -> None:
    pixels = np.zeros(256, dtype=np.int16)
    hidden = [hide(pixels, seed, number)[0].tolist() for seed, number in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert hidden[0] == hidden[3]
    assert len({tuple(each) for each in hidden}) == 3
    often = sum(hide(pixels, 0, number)[0] == HIDDEN for number in range(1000))
    assert 400 < often.min() < often.max() < 600


def test_images_are_read_in_grey_and_levels_are_the_classes(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images")
    opened = open_sequences(Wanted("inpaint", "train", 64, str(root), seed=3))
    tokens, targets = opened.read(5)
    same, label = open_sequences(Wanted("image", "train", 64, str(root))).read(5)
    assert opened.classes == ("0 to 31", *CLASSES[1:-1], "224 to 255")
    assert (tokens.tolist(), targets.tolist()) == tuple(part.tolist() for part in hide(same, 3, 5))
    assert isinstance(label, int)


def test_an_image_that_can_not_be_read_asks_nothing(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images")
    for path in (root / "val").rglob("*.png"):
        path.write_bytes(b"no image")
    for path in (root / "train" / "class0").glob("*.png"):
        path.write_bytes(b"no image")
    held_out = open_sequences(Wanted("inpaint", "validation", 64, str(root)))
    (batch,) = held_out_batches(held_out, 12, 0, form=FORM)
    assert batch.targets.shape == (12, 1)
    assert (batch.targets == NO_LABEL).all()
    assert len(batch.corrupt) == 12
    training = open_sequences(Wanted("inpaint", "train", 64, str(root)))
    found = list(training_batches(training, Order(len(training), 4, 0), 0, FORM).epoch(0))
    assert any(batch.corrupt for batch in found)
    for batch in found:
        asked = batch.targets != NO_LABEL
        assert asked.sum() == 32 * sum(int(asked[row].any()) for row in range(4))


@pytest.mark.parametrize("attention", MIXERS)
def test_every_mixer_answers_for_each_token_of_an_image(attention: str) -> None:
    torch.manual_seed(0)
    small = {"landmarks": 9, "dim": 16, "mlp_dim": 24, "dropout": 0.0}
    model = SequenceEncoder(9, 64, 8, per_token=True, axes=2, attention=attention, **small)
    tokens, targets = torch.randint(9, (3, 64)), torch.randint(8, (3, 64))
    logits = model(tokens)
    assert logits.shape == (3, 8, 64)
    F.cross_entropy(logits, targets).backward()
    assert all(parameter.grad is not None for parameter in model.head.parameters())
    model.eval()
    kept = model(tokens)
    alone = torch.cat([model(each[None]) for each in tokens])
    torch.testing.assert_close(kept, alone, rtol=1e-4, atol=1e-5)


def test_the_tokens_of_images_have_two_axes() -> None:
    """With two axes, the convolution of a token reaches the row above it; with one, only neighbours in its row."""
    reached = {}
    for axes in (1, 2):
        torch.manual_seed(0)
        model = SequenceEncoder(9, 64, 8, per_token=True, axes=axes, attention="local", depth=1, dropout=0.0).eval()
        tokens = torch.randint(9, (1, 64))
        changed = tokens.clone()
        changed[0, 27] = (changed[0, 27] + 1) % 9
        reached[axes] = (model(tokens) != model(changed)).any(1)[0].nonzero().flatten().tolist()
    assert reached == {1: [26, 27, 28], 2: [18, 19, 20, 26, 27, 28, 34, 35, 36]}


def test_landmarks_are_in_squares() -> None:
    layer = SequenceEncoder(9, 256, 8, axes=2, landmarks=49).layers[0].attention
    assert layer.grid == (7, 7)
    assert SequenceEncoder(9, 256, 8, axes=2, landmarks=49, attention="skyformer").layers[0].attention.grid == (4, 4)
    with pytest.raises(ValueError, match="landmarks must be a square number for images, got 48"):
        SequenceEncoder(9, 256, 8, axes=2, landmarks=48)
    with pytest.raises(ValueError, match="expected the tokens of square images, got 60"):
        SequenceEncoder(9, 256, 8, axes=2, landmarks=49)(torch.zeros(1, 60, dtype=torch.long))
    with pytest.raises(ValueError, match="axes must be 1 or 2, got 3"):
        SequenceEncoder(9, 256, 8, axes=3)
    with pytest.raises(ValueError, match="expected pairs or per_token, got both"):
        SequenceEncoder(9, 256, 8, pairs=True, per_token=True)


def test_a_run_learns_from_neighbours_and_is_evaluated(tmp_path: Path) -> None:
    """Images of one brightness each: what an image shows tells what it hides."""
    for split, count in (("train", 32), ("val", 8)):
        (tmp_path / "data" / split / "all").mkdir(parents=True)
        for number in range(count):
            grey_value = 16 + 32 * (number % 8)
            image = picture(number).convert("L").resize((8, 8)).point(lambda _, value=grey_value: value)
            image.save(tmp_path / "data" / split / "all" / f"{number}.png")
    data = {"task": "inpaint", "root": str(tmp_path / "data"), "length": 64}
    encoder = {"axes": 2, "local": False, "landmarks": 9, "dim": 32}
    recipe = helpers.tiny(
        tmp_path,
        data=data | {"train_samples": None, "val_samples": None},
        encoder=encoder,
        optimise={"epochs": 30, "lr": 1e-2},
    )
    result = sequences.train(recipe, tmp_path / "run")
    assert result.accuracy > 0.9
    loaded = sequences.load_encoder(result.weights)
    measured = sequences.evaluate(loaded, sequences.open_batches(loaded, str(tmp_path / "data")))
    assert (measured.accuracy, measured.sequences) == (result.accuracy, 8)
    assert sum(map(sum, measured.confusion)) == 8 * 32
    with pytest.raises(InputError, match=r"answers for each token \(inpaint\).*`laplacianformer eval` measures"):
        list(sequences.predict(loaded, ["anything.png"]))


def test_files_say_what_fits_their_task(tmp_path: Path) -> None:
    model = SequenceEncoder(9, 64, 8, per_token=True, axes=2, landmarks=9, dim=16)
    path = tmp_path / "model.safetensors"
    sequences.save_encoder(path, model, sequence="inpaint", classes=CLASSES)
    assert sequences.load_encoder(path).model.axes == 2
    plain = SequenceEncoder(9, 64, 8, dim=16, landmarks=9)
    with pytest.raises(InputError, match="expected per_token for inpaint, and for nothing else"):
        sequences.save_encoder(path, plain, sequence="inpaint", classes=CLASSES)
    texts = SequenceEncoder(257, 64, 2, axes=2, dim=16, landmarks=9)
    with pytest.raises(InputError, match="expected one axis for text, whose tokens are no images"):
        sequences.save_encoder(path, texts, sequence="text", classes=("neg", "pos"))
