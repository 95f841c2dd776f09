"""What the values in label maps mean."""

from pathlib import Path

import numpy as np
import pytest

from laplacianformer._util.errors import InputError
from laplacianformer.segmentation import IGNORED, labels_of, read_labels


def test_values_become_indices_and_what_is_ignored_255() -> None:
    labels = labels_of({"ignore": [2, 300], "classes": ["sky", {"name": "road", "value": 7}]}, "it")
    assert labels.indices(np.array([[0, 7], [2, 300]])).tolist() == [[0, 1], [IGNORED, IGNORED]]
    assert labels.indices(np.array([[0, 7]])).dtype == np.uint8
    assert labels_of(labels.tree(), "it") == labels


def test_values_outside_the_list_are_named() -> None:
    labels = labels_of({"ignore": 255, "classes": ["a", "b"]}, "it")
    with pytest.raises(InputError, match=r"has the values 2, 9 in .* neither classes \(0 to 1\) nor ignored \(255\)"):
        labels.indices(np.array([[0, 1, 9, 2, 255]]))


def test_a_yaml_file_holds_names_values_and_colours(tmp_path: Path) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text("ignore: 11\nclasses: [sky, {name: road, value: 4, colour: [1, 2, 3]}]\n")
    labels = read_labels(path)
    assert (labels.names, labels.values, labels.ignore) == (("sky", "road"), (0, 4), (11,))
    assert labels.colours[1] == (1, 2, 3)


def test_classes_without_colours_have_different_ones() -> None:
    labels = labels_of({"classes": [str(number) for number in range(150)]}, "it")
    assert len(set(labels.colours)) == 150


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (["a"], "expected the keys classes and ignore"),
        ({"classes": []}, "a list of 1 to 255 classes"),
        ({"classes": ["a"] * 256}, "a list of 1 to 255 classes"),
        ({"classes": ["a", "a"]}, "the name 'a' appears twice"),
        ({"classes": ["a", "b"], "ignore": 1}, "the value 1 appears twice"),
        ({"classes": ["a"], "ignore": -1}, "the value -1 is not a whole number from 0 to 65535"),
        ({"classes": ["a"], "ignore": [None]}, "the value None is not a whole number from 0 to 65535"),
        ({"classes": [{"name": "a", "value": None}]}, "the value None is not a whole number from 0 to 65535"),
        ({"classes": [{"name": "a", "color": 1}]}, "expected a name, or name, value and colour"),
        ({"classes": [{"name": "a", "colour": [0, 0, 256]}]}, "three numbers from 0 to 255"),
    ],
)
def test_what_makes_no_sense_is_refused(tree: object, said: str) -> None:
    with pytest.raises(InputError, match=f"it: .*{said}"):
        labels_of(tree, "it")
