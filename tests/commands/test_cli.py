import json

import pytest

from laplacianformer.cli import main


@pytest.mark.slow
def test_info_as_json_states_the_cost_of_all_six_sizes(capsys):
    main(["info", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [f"laplacianformer_{size}" for size in ("nano", "tiny", "small", "medium", "large", "huge")]
    assert rows["laplacianformer_tiny"]["parameters"] == pytest.approx(12.06e6, rel=1e-3)
    assert rows["laplacianformer_tiny"]["macs"] == pytest.approx(2.14e9, rel=3e-3)


@pytest.mark.slow
def test_info_as_a_table_shows_the_papers_numbers_only_where_they_apply(capsys):
    main(["info"])
    at_224 = capsys.readouterr().out
    main(["info", "--size", "64"])
    at_64 = capsys.readouterr().out
    assert "15.5 " in at_224
    assert "15.5 " not in at_64


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["info", "--size", "0"], ["info", "--size", "abc"]])
def test_wrong_command_lines_end_with_code_2_and_a_reason(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: laplacianformer" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["info", "more"], ["info", "--sizes"], ["predict", "a.png", "--tpo", "3"]])
def test_unknown_arguments_are_named(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    command, unknown = arguments[0], arguments[-2 if "--tpo" in arguments else -1]
    expected = f"laplacianformer {command}: unknown argument {unknown}: see laplacianformer {command} --help\n"
    assert capsys.readouterr().err == expected
