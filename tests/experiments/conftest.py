import sys
from pathlib import Path

import pytest

from laplacianformer.experiments import sweep

# Writes what a training writes, after it has waited or worked for a given time, and counts how often it was started.
STAND_IN = """
import sys, time
from pathlib import Path
words = dict(word.split("=") for word in sys.argv if "=" in word)
folder = Path(sys.argv[sys.argv.index("--output") + 1])
with (folder / "started").open("a") as file:
    print(sys.argv, file=file)
if "bad" in words:
    sys.exit(f"bad={words['bad']} is not known")
time.sleep(float(words.get("seconds", 0)))
while time.process_time() < float(words.get("busy", 0)):
    pass
seed = words["run.seed"]
(folder / "metrics.csv").write_text(
    "epoch,loss,validation_loss,validation_accuracy\\n0.5,2.0,,\\n"
    f"1.0,1.5,1.7,0.{seed}1\\n1.5,1.4,,\\n2.0,1.2,1.6,0.{seed}2\\n"
)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> Path:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(sweep, "PROGRAM", (sys.executable, "-I", "-S", str(script)))  # starts in a third of the time
    monkeypatch.setattr(sweep, "PAUSE", 0.01)
    return script
