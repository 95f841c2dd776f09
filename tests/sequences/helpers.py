"""Small recipes, a generated corpus of texts and a table of pairs: seconds on one core."""

import random
from pathlib import Path
from typing import Any

import yaml

from laplacianformer.sequences import SequenceRecipe, load_recipe

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")


def text_of(chance: random.Random, words: tuple[str, ...]) -> str:
    return " ".join(chance.choice((*words, "a", "film", "with", "actors")) for _ in range(chance.randint(5, 30)))


def text_folder(root: Path, train: int = 12, test: int = 6) -> Path:
    """root/{train,test}/{pos,neg}/N.txt, in IMDb's layout."""
    chance = random.Random(0)
    for split, count in (("train", train), ("test", test)):
        for label, words in (("pos", GOOD), ("neg", BAD)):
            folder = root / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.txt").write_text(text_of(chance, words))
    return root


def pair_folder(root: Path, train: int = 16, val: int = 6) -> Path:
    """root/pairs.{train,eval}.tsv, in the layout of Long Range Arena."""
    chance = random.Random(1)
    root.mkdir(parents=True)
    for split, count in (("train", train), ("eval", val)):
        lines = []
        for number in range(count):
            label = number % 2
            first, second = text_of(chance, GOOD), text_of(chance, GOOD if label else BAD)
            lines.append(f"{label}.0\tid{number}\tid{number + 1}\t{first}\t{second}\n")
        (root / f"pairs.{split}.tsv").write_text("".join(lines))
    return root


def write_recipe(path: Path, **sections: dict[str, Any]) -> Path:
    """A recipe file: 4 epochs of 4 steps of 8 short expressions, with dropout."""
    recipe: dict[str, dict[str, Any]] = {
        "encoder": {"dim": 16, "num_heads": 2, "mlp_dim": 16, "landmarks": 4, "depth": 1},
        "data": {
            "task": "listops",
            "length": 48,
            "shortest": 8,
            "train_samples": 32,
            "val_samples": 12,
            "workers": 0,
        },
        "optimise": {"epochs": 4, "batch_size": 8, "lr": 2e-3, "warmup_epochs": 1, "min_lr": 0.0},
        "run": {"accelerator": "cpu", "devices": 1, "log_steps": 3, "checkpoint_steps": 3, "tensorboard": False},
    }
    for name, keys in sections.items():
        recipe[name] |= keys
    path.write_text(yaml.safe_dump(recipe))
    return path


def tiny(folder: Path, **sections: dict[str, Any]) -> SequenceRecipe:
    return load_recipe(str(write_recipe(folder / "recipe.yaml", **sections)))
