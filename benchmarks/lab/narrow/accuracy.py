"""Errors of the outputs with narrow weights: trained networks, and the logits of GPT-2 with drawn weights.

    python -m benchmarks.lab.narrow.accuracy                      # all of them
    python -m benchmarks.lab.narrow.accuracy ppocr_rec gpt2       # some

Every network is built with float32 weights, in three narrow types, and with types chosen by `auto`, and runs on the same
pictures. Errors are the largest difference from float32 over the largest output. `auto` is calibrated on all pictures but
the last, on which it is measured too. The exit status is 1 if anything is out of bounds, or if PP-OCR reads other text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks import models
from benchmarks.lab.narrow.reading import Run, alphabet, printed_page, read_page
from benchmarks.networks import trained
from benchmarks.results import Results, Table, json_option

NETWORKS = (*trained.TRAINED, "gpt2")
AUTO_ERROR, AUTO_PART = 5e-3, 0.45  # what auto has to keep, in which part of float32's bytes
MOST = {"float16": 1e-3, "bfloat16": None, "int8": 3e-2, "auto": AUTO_ERROR}  # part of the largest output
PICTURES = {"gpt2": 2}
_PICTURES = 3


@dataclass(frozen=True)
class Row:
    """A network with weights of one kind."""

    network: str
    weights: str
    part: float  # of float32's bytes
    error: float  # the largest, on the pictures that auto was calibrated with
    error_elsewhere: float  # on the last picture
    mean: float  # of the differences of all outputs on all pictures, over the largest
    verdict: str  # "" if it is within bounds


def measure(name: str, folder: Path) -> list[Row]:
    """A network with weights of all kinds, written as FOLDER/NAME.WEIGHTS.so."""
    network = models.load(name)
    inputs = [network.example(variant) for variant in range(PICTURES.get(name, _PICTURES))]
    rows, wide = [], None
    for weights in ("float32", *MOST):
        more = dict(max_error=AUTO_ERROR, calibration=inputs[:-1]) if weights == "auto" else {}
        artifact = flexcomp.build(
            network.model, input_shapes=network.input_shapes, kernels="smallest", weights=weights, **more
        )
        artifact.export_library(library(folder, name, weights))
        with flexcomp.load(library(folder, name, weights)) as session:
            outputs = [session.run(given) for given in inputs]
        nbytes = artifact.program.weights_nbytes
        if wide is None:
            wide = outputs, nbytes
            continue
        *errors, last = (_error(found, wanted) for found, wanted in zip(outputs, wide[0], strict=True))
        mean = np.mean([_mean(found, wanted) for found, wanted in zip(outputs, wide[0], strict=True)])
        rows.append(_row(name, weights, nbytes / wide[1], max(errors), last, float(mean)))
    return rows


def _row(name: str, weights: str, part: float, error: float, elsewhere: float, mean: float) -> Row:
    most = MOST[weights]
    wrong = []
    if most is not None and not error <= most:
        wrong.append(f"errs by more than {most:g}")
    if most is not None and weights != "auto" and not elsewhere <= most:
        wrong.append(f"errs by more than {most:g} on the last picture")
    if weights == "auto" and part > AUTO_PART:
        wrong.append(f"more than {AUTO_PART} of the bytes")
    return Row(name, weights, part, error, elsewhere, mean, "; ".join(wrong))


def _error(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    return max(float(np.max(abs(found[name] - wanted[name])) / np.max(abs(wanted[name]))) for name in wanted)


def _mean(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    return float(np.mean([np.mean(abs(found[name] - wanted[name])) / np.max(abs(wanted[name])) for name in wanted]))


def library(folder: Path, name: str, weights: str) -> Path:
    return folder / f"{name}.{weights}.so"


def answers(folder: Path, names: list[str]) -> dict[str, str]:
    """What narrow networks say of pictures that float32 does not, by what was asked; "" if it is the same."""
    result = {}
    for weights in MOST:
        if {"ppocr_det", "ppocr_rec"} <= set(names):
            result[f"PP-OCR, {weights}"] = _other_text(folder, weights)
    return result


def _other_text(folder: Path, weights: str) -> str:
    letters = alphabet(trained.load("ppocr_rec"))
    texts = {}
    for kind in ("float32", weights):
        with _running(folder, "ppocr_det", kind) as detect, _running(folder, "ppocr_rec", kind) as recognise:
            texts[kind] = [read_page(printed_page(variant), detect, recognise, letters) for variant in range(_PICTURES)]
    print(f"PP-OCR, {weights}: {texts[weights]}", file=sys.stderr)
    return "" if texts[weights] == texts["float32"] else f"{texts[weights]} instead of {texts['float32']}"


@contextmanager
def _running(folder: Path, name: str, weights: str) -> Iterator[Run]:
    with flexcomp.load(library(folder, name, weights)) as session:
        yield session


COLUMNS = {
    "network": "", "weights": "", "bytes, of float32's": ".3f", "error": ".1e", "on another picture": ".1e", "mean": ".1e",
    "verdict": "",
}  # fmt: skip


def main() -> None:
    """Measure the chosen networks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=f"some of {', '.join(NETWORKS)}")
    json_option(parser, "narrow_accuracy")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NETWORKS):
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join(NETWORKS)}")
    names, rows = args.names or list(NETWORKS), []
    written, table = Results.begin("benchmarks.lab.narrow.accuracy"), Table(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for row in measure(name, Path(folder)):
                rows.append(row)
                table.add(name, row.weights, row.part, row.error, row.error_elsewhere, row.mean, row.verdict or "ok")
        found = answers(Path(folder), names)
    written.write(args.json, [table], answers=found)
    for question, other in found.items():
        print(f"{question}: {other or 'the same as float32'}")
    sys.exit(any(row.verdict for row in rows) or any(found.values()))


if __name__ == "__main__":
    main()
