"""`python -m tests.fuzz KIND SEED NUMBER`: one generated input, with what becomes of it."""

import sys
import tempfile
from pathlib import Path

from tests.fuzz.files import Samples
from tests.fuzz.process import CaseProcess

if __name__ == "__main__":
    kind, seed, number = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        runner = CaseProcess(Samples(Path(folder)))
        print(*runner.run(kind, int(seed), int(number)), sep="\n")
        runner.stop()
