"""What the tests of classification share."""

from pathlib import Path

from tests.helpers import CLASSES, picture


def labelled_folder(root: Path) -> Path:
    """Three images per class, in folders that have nothing to do with what the model predicts."""
    for number in range(3 * len(CLASSES)):
        folder = root / CLASSES[number % len(CLASSES)]
        folder.mkdir(parents=True, exist_ok=True)
        picture(number).save(folder / f"{number}.png")
    return root
