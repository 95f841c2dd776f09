"""What the tests of exports share: the weights of one stage, which take a third of the time to export of two."""

import json
from pathlib import Path

from laplacianformer.cli import main
from laplacianformer.weights import save_weights
from tests.helpers import CLASSES, INPUT, small_model
from tests.model.helpers import ONE_STAGE


def save_one_stage(path: Path) -> Path:
    save_weights(path, small_model(**ONE_STAGE), classes=CLASSES, metadata={"input": json.dumps(INPUT)})
    return path


def code_of(arguments: list[str]) -> int | str | None:
    try:
        main(arguments)
    except SystemExit as stop:
        return stop.code
    return 0
