from laplacianformer.experiments.rows import read_rows, write_rows


def test_rows_come_back_as_text(tmp_path) -> None:
    write_rows(tmp_path / "a" / "rows.csv", [{"x": 1, "y": "a,b"}, {"x": 2.5, "z": "new"}])
    assert read_rows(tmp_path / "a" / "rows.csv") == [
        {"x": "1", "y": "a,b", "z": ""},
        {"x": "2.5", "y": "", "z": "new"},
    ]


def test_a_missing_file_has_no_rows(tmp_path) -> None:
    assert read_rows(tmp_path / "none.csv") == []
