"""Decoders that the exporters themselves write give the tokens of ONNX Runtime, in four budgets.

    python3 -m venv tools
    tools/bin/pip install torch transformers optimum-onnx onnxscript 'onnxruntime-genai==0.11.*'
    python -m tests.exporters.real tools [EXPORTER-MODEL …] [--folder build/exports]

By default all exporters write all models of `write.py`; an export that is there is taken as it is. Compared are 64 greedy tokens
after a prompt that is taken in chunks, with everything resident, 25 and 10 % of what lies above the smallest budget, and in that.
Products in 4 bits are computed by ONNX Runtime without rounding activations. An exporter that cannot write a model, or writes
one that ONNX Runtime cannot run, is named; the exit status is 1 if tokens differ or a model is refused.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

import flexcomp
from flexcomp.compiler import read_model_folder
from flexcomp.errors import FlexcompError

WRITE = Path(__file__).with_name("write.py")
EXPORTERS = ("optimum", "genai-fp32", "genai-int4", "torch-dynamic", "torch-static")
MODELS = (
    "bloom", "falcon", "gemma2", "gemma3", "gpt2", "gptj", "gptneox", "granite", "llama3", "llama31", "mistral", "olmo2", "opt",
    "phi", "phi3", "qwen25", "qwen3", "smollm", "stablelm",
)  # fmt: skip
TOKENS, CONTEXT, CHUNK = 64, 96, 16
_ORT_ERRORS = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)
BUDGETS = (1.0, 0.25, 0.1, 0.0)  # of everything resident, less the smallest


class _Unwritten(Exception):
    """An exporter's own failure."""


def _last(text: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def write(tools: Path, folder: Path, exporter: str, model: str) -> None:
    """Let an exporter write a model into a folder. Raises _Unwritten."""
    command = [tools / "bin/python", WRITE, folder, exporter, model]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise _Unwritten(f"not written: {_last(done.stdout)}")


def wanted(path: Path, prompt: Sequence[int]) -> tuple[list[int], float]:
    """ONNX Runtime's greedy tokens, and the least distance of the best token from the second."""
    model = onnx.load(path)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1  # of products in blocks: float32
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), [port.name for port in session.get_outputs()]
    past = {
        port.name: np.zeros([1, *(extent if isinstance(extent, int) else 0 for extent in port.shape[1:])], "float32")
        for port in inputs
        if port.name.startswith("past")
    }
    found: list[int] = []
    ids, begin, least = np.int64(prompt), 0, np.inf
    while len(found) < TOKENS:
        places = np.arange(begin, begin + len(ids))
        given = {"input_ids": ids[None], "attention_mask": np.ones((1, begin + len(ids)), np.int64), "cache_position": places}
        given |= {"position_ids": places[None], **past}
        made = dict(zip(outputs, session.run(None, {one.name: given[one.name] for one in inputs}), strict=True))
        past = {name: made[name.replace("past_key_values", "present")] for name in past}
        second, best = np.sort(made["logits"][0, -1])[-2:]
        least = min(least, float(best - second))
        found.append(int(made["logits"][0, -1].argmax()))
        ids, begin = np.int64(found[-1:]), begin + len(ids)
    return found, least


def build(folder: Path, library: Path) -> None:
    """A library for single tokens and chunks."""
    found = read_model_folder(folder, context=CONTEXT)
    shapes = {name: [1, CHUNK] for name in found.shapes}
    options = {"threads": 1, "probe": False, "progress": False, "kernels": "smallest"}
    made = flexcomp.build(found.model, input_shapes=found.input_shapes, shapes=shapes, state=found.state, **options)
    made.export_library(library)


def compare(folder: Path, library: Path) -> str:
    """What became of an export: empty if all tokens are right. Raises _Unwritten where ONNX Runtime cannot run it."""
    prompt = np.random.default_rng(3).integers(3, 256, 21).tolist()
    try:
        tokens, least = wanted(folder / "model.onnx", prompt)
    except _ORT_ERRORS as error:
        raise _Unwritten(f"not run by ONNX Runtime: {_last(str(error))}") from None
    build(folder, library)
    ends = []
    for name in ("min", "all"):
        with flexcomp.load(library, budget=name) as session:
            ends.append(session.budget)
    wrong = []
    for part in BUDGETS:
        with flexcomp.load(library, budget=int(ends[0] + part * (ends[1] - ends[0]))) as session:
            if list(flexcomp.Generator(session).reply(prompt, max_tokens=TOKENS)) != tokens:
                wrong.append(f"other tokens in {session.budget:,} bytes")
    weights = library.with_suffix(".weights").stat().st_size / sum(path.stat().st_size for path in folder.glob("*.onnx*"))
    print(f"{folder.name}: {len(set(tokens))} different tokens, {least:.1e} apart at least, file {weights:.2f} of the export's")
    return "; ".join(wrong)


def main() -> int:
    """Write exports and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tools", type=Path, help="an environment with the exporters")
    parser.add_argument("exports", nargs="*", help="such as optimum-llama3; all by default")
    parser.add_argument("--folder", type=Path, default=Path("build/exports"))
    args = parser.parse_args()
    onnxruntime.set_default_logger_severity(3)
    bad, unwritten = [], []
    for export in args.exports or [f"{exporter}-{model}" for model in MODELS for exporter in EXPORTERS]:
        exporter, _, model = export.rpartition("-")
        folder = args.folder / export
        try:
            if not (folder / "model.onnx").exists():
                write(args.tools, args.folder, exporter, model)
            reason = compare(folder, folder / "library" / "decoder.so")
        except _Unwritten as error:
            unwritten.append(export)
            print(f"{export}: {error}", flush=True)
            continue
        except FlexcompError as error:
            reason = str(error)
        if reason:
            bad.append(export)
            print(f"{export}: {reason}", flush=True)
    print(f"{len(bad)} wrong or refused: {' '.join(bad) or 'none'}")
    print(f"{len(unwritten)} not written by their exporter: {' '.join(unwritten) or 'none'}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
