"""`benchmarks.lab.decode`: a small decoder gives the tokens of ONNX Runtime in every budget that it can have."""

from __future__ import annotations

import os

import pytest

from benchmarks.lab import decode

SIZES = ["--layers", "1", "--width", "64", "--heads", "2", "--vocabulary", "100"]
SMALL = [*SIZES, "--prompt", "4", "--tokens", "5", "--json", os.devnull]


def test_a_small_decoder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert decode.main([*SMALL, "--budgets", "all", "min", "0.01"]) == 0
    table = capsys.readouterr().out.splitlines()
    judge, resident, smallest, none = (line.split("|") for line in table[2:])
    assert judge[1].strip() == "ONNX Runtime" and {line[6].strip() for line in (judge, resident, smallest)} == {"yes"}
    assert float(resident[5]) == 0 < float(smallest[5]) and float(smallest[2]) < float(resident[2])
    assert "not possible" in none[6] and not list(tmp_path.iterdir())


def test_in_8_bits(capsys, tmp_path, monkeypatch):
    """The same tokens as ONNX Runtime's from the same values, rows of the table among them."""
    monkeypatch.chdir(tmp_path)
    large = [*SMALL, "--vocabulary", "5000", "--weights", "int8", "--budgets", "all", "min"]
    assert decode.main(large) == 0
    _, resident, smallest = (line.split("|") for line in capsys.readouterr().out.splitlines()[2:])
    assert float(resident[2]) < 64 * 5000 * 4 * 1.3 / 1e6, "less than two tables of float32 were alone"
    assert float(smallest[5]) < 0.8, "the logits' weights and a small table, but of 0.5 MB of rows two pages"


def test_prompts_that_are_none(capsys):
    for wrong in (["--prompt", "0"], ["--tokens", "1"], ["--prompt", "1020"], ["--heads", "3"]):
        with pytest.raises(SystemExit):
            decode.main([*SMALL, *wrong])
        assert "tokens at most" in capsys.readouterr().err
