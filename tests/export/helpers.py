"""What the tests of exports share: the weights of one stage, which take a third of the time to export of two."""

import json
from pathlib import Path
from typing import Any

from laplacianformer.cli import main
from laplacianformer.weights import save_weights
from tests.helpers import CLASSES, INPUT, small_model
from tests.model.helpers import ONE_STAGE


def save_one_stage(path: Path, **attention_args: Any) -> Path:
    options = {**ONE_STAGE, "attention_args": {**ONE_STAGE["attention_args"], **attention_args}}
    save_weights(path, small_model(**options), classes=CLASSES, metadata={"input": json.dumps(INPUT)})
    return path


def code_of(arguments: list[str]) -> int | str | None:
    try:
        main(arguments)
    except SystemExit as stop:
        return stop.code
    return 0
