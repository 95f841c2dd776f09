"""Tables of results as CSV files, written whole or not at all."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laplacianformer._util.files import replacing

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Every row, with its values as text; no rows if the file does not exist yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """The columns are those of all rows, in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with replacing(path) as file:
        file.write(text.getvalue().encode())
