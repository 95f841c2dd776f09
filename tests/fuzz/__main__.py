"""`python -m tests.fuzz KIND SEED NUMBER`: one generated input, with what becomes of it."""

import sys
import tempfile
from pathlib import Path

from tests.fuzz.cases import run_case
from tests.fuzz.files import Samples

if __name__ == "__main__":
    kind, seed, number = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        print(*run_case(kind, int(seed), int(number), Samples(Path(folder))), sep="\n")
