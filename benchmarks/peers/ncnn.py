"""ncnn, converted by pnnx without float16 storage, and with all reduced precision turned off."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import ncnn
import numpy as np

from benchmarks.peers import worker

_REDUCED = ("use_fp16", "use_bf16", "use_int8")


def convert(model: Path, folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Write its own format with pnnx, whose program works without its Python package."""
    os.link(model, folder / "model.onnx")
    program = Path(sysconfig.get_path("purelib")) / "pnnx" / "pnnx"
    kinds = {"float32": "f32", "int64": "i64"}
    shapes = [f"[{','.join(map(str, value.shape))}]{kinds[value.dtype.name]}" for value in inputs.values()]
    command = [program, "model.onnx", "fp16=0", f"inputshape={','.join(shapes)}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    parameters = folder / "model.ncnn.param"
    if not parameters.exists():
        raise SystemExit(f"pnnx ended with code {done.returncode} and no model")
    if odd := _unknown_layers(parameters):
        raise SystemExit(f"pnnx left operators that ncnn lacks: {', '.join(sorted(odd))}")
    for path in folder.iterdir():  # the model in other formats
        if path.name not in ("model.ncnn.param", "model.ncnn.bin"):
            path.unlink()


def _unknown_layers(parameters: Path) -> set[str]:
    """Operators that pnnx could not translate keep the names of their origin, which have a dot or two colons."""
    kinds = {line.split()[0] for line in parameters.read_text().splitlines()[2:]}
    return {kind for kind in kinds if "." in kind or "::" in kind}


def _without_batch(value: np.ndarray) -> np.ndarray:
    """The first axis goes, of sequences that begin with their steps the first of extent one."""
    return value[0] if value.shape[0] == 1 else value.squeeze(value.shape.index(1))


def load(folder: Path, inputs: worker.Inputs, threads: int, budget: int | None) -> worker.Call:
    """Load the network; blobs are in0…, out0… in the order of the model's ports, without the batch axis."""
    net = ncnn.Net()
    net.opt.num_threads = threads
    for name in dir(net.opt):
        if name.startswith(_REDUCED):
            setattr(net.opt, name, False)
    if net.load_param(str(folder / "model.ncnn.param")) or net.load_model(str(folder / "model.ncnn.bin")):
        raise SystemExit("ncnn cannot load the model")
    given = [value.astype(np.int32) if value.dtype == np.int64 else value for value in inputs.values()]
    feeds = [(f"in{i}", ncnn.Mat(np.ascontiguousarray(_without_batch(value)))) for i, value in enumerate(given)]
    outputs = [name for name in net.output_names() if name.startswith("out")]

    def call() -> list[np.ndarray]:
        with net.create_extractor() as extractor:
            for name, mat in feeds:
                extractor.input(name, mat)
            results = []
            for name in outputs:
                code, mat = extractor.extract(name)
                if code:
                    raise SystemExit(f"ncnn cannot compute {name}: code {code}")
                results.append(np.array(mat))
            return results

    return call


if __name__ == "__main__":
    worker.main("ncnn", convert, load)
