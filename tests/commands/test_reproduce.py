"""`laplacianformer reproduce`: what it prints is in experiments/test_frame.py; here what is gone."""

import pytest

from laplacianformer.cli import main


@pytest.mark.parametrize(
    ("old", "new"), [("kernel-time", "op-time"), ("kernel-accuracy", "op-accuracy"), ("kernels", "other-kernels")]
)
def test_the_old_name_of_an_experiment_says_the_new_one(old, new, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", old])
    assert stop.value.code == 2
    assert f"`laplacianformer reproduce {new}`" in capsys.readouterr().err


def test_page_says_what_replaced_it(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--page"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("laplacianformer reproduce: --page is gone:")
    assert "python docs/reproduction.py" in said
    assert said.count("\n") == 1
