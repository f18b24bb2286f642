"""Greedy decoding with GPT-2: time to the first token, and tokens per second after that, over budgets; next to ONNX Runtime.

    python -m benchmarks.lab.decode [--prompt 64] [--tokens 64] [--budgets all 0.5 0.25 0.1 0.05] [--read-bandwidth 257e6]
    python -m benchmarks.lab.decode --layers 2 --width 128 --heads 4 --vocabulary 1000          # a small one, in seconds

The prompt is one inference of a network for so many tokens, and every later token one of a network for a single one, which
goes on with the state of the first: caches of keys and values for prompt and answer, neither given nor returned.
Each is open alone, within the budget, while timed; `first` counts from the prompt in an open session to the first
token. ONNX Runtime has the same caches, each bound as input and output, so that writes are in place. Weights are drawn from a
seed: the time is that of trained ones. With `--weights int8` ONNX Runtime computes in float32 as well, with the values that
weights have in 8 bits: the same function. The exit status is 1 if any budget gives other tokens than ONNX Runtime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import flexcomp
from benchmarks.networks.decoding import Sizes, gpt2_decoder
from benchmarks.results import Results, Table, json_option
from flexcomp.schedules.tiles import narrow_panel

COLUMNS = {
    "engine": "", "budget, MB": ".1f", "first token, ms": ".1f", "tokens per second": ".1f", "MB read per token": ".1f",
    "same tokens": "",
}  # fmt: skip


@dataclass(frozen=True)
class Decoded:
    """The times of one decoder."""

    tokens: tuple[int, ...]
    first_s: float  # until the first token
    later_s: float  # the median of later ones
    read_nbytes: int = 0  # in the last step
    budget: int | None = None  # bytes; of the network for single tokens

    def cells(self, engine: str, right: tuple[int, ...]) -> tuple:
        """A row of the table."""
        budget = None if self.budget is None else self.budget / 1e6
        same = "yes" if self.tokens == right else "NO"
        return engine, budget, self.first_s * 1e3, 1 / self.later_s, self.read_nbytes / 1e6, same


def by_onnxruntime(models: list[bytes], sizes: Sizes, prompt: np.ndarray, count: int, threads: int) -> Decoded:
    """`models` are those for the prompt and for a token."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    first, step = (onnxruntime.InferenceSession(model, options) for model in models)
    caches = {name: onnxruntime.OrtValue.ortvalue_from_numpy(cache) for name, cache in sizes.caches(prompt.size + count).items()}
    tokens, times, ids, at = [], [], prompt, 0
    for number in range(count):
        session = step if number else first
        start = time.perf_counter()
        binding = session.io_binding()
        binding.bind_cpu_input("ids", ids)
        binding.bind_cpu_input("at", np.int64([at]))
        binding.bind_output("logits")
        for made, name in sizes.state.items():
            binding.bind_ortvalue_input(name, caches[name])
            binding.bind_ortvalue_output(made, caches[name])
        session.run_with_iobinding(binding)
        tokens.append(int(binding.get_outputs()[0].numpy().argmax()))
        times.append(time.perf_counter() - start)
        at, ids = at + ids.size, np.int64([tokens[-1:]])
    return Decoded(tuple(tokens), times[0], float(np.median(times[1:])))


def rounded(model: onnx.ModelProto, dtype: str | None) -> onnx.ModelProto:
    """The network with the values of weights kept in `dtype`: of products, and of tables from 1 MiB on."""
    if dtype in (None, "float32"):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    products = {node.input[1] for node in model.graph.node if node.op_type == "MatMul"}
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    for one in result.graph.initializer:
        value = numpy_helper.to_array(one)
        if one.name in products:
            one.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(narrow_panel.rounded(value.T, dtype).T), one.name))
        elif one.name in tables and value.nbytes >= 1 << 20:
            one.CopyFrom(numpy_helper.from_array(narrow_panel.rounded(value, dtype), one.name))
    return result


def by_us(libraries: list[Path], prompt: np.ndarray, count: int, budget: float | str, **options) -> Decoded:
    """`libraries` are those for the prompt and for a token; `options` are of `flexcomp.load`."""
    tokens, times = [], []

    def one(session: flexcomp.Session, ids: np.ndarray, at: int) -> None:
        start = time.perf_counter()
        tokens.append(int(session(ids, np.int64([at])).argmax()))
        times.append(time.perf_counter() - start)

    with flexcomp.load(libraries[0], budget, **options) as session:
        one(session, prompt, 0)
        state = session.state()
    with flexcomp.load(libraries[1], budget, **options) as session:
        session.set_state(state)
        for number in range(count - 1):
            one(session, np.int64([tokens[-1:]]), prompt.size + number)
        stats = session.stats()
    return Decoded(tuple(tokens), times[0], float(np.median(times[1:])), stats["bytes_read"], stats["budget_bytes"])


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a token is wrong, or no budget possible."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = Sizes()
    for name in ("layers", "width", "heads", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, default=getattr(sizes, name))
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="that are made")
    parser.add_argument("--budgets", nargs="+", default=["all", "0.5", "0.25", "0.1", "0.05"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", choices=("float16", "bfloat16", "int8"), help="element type in which weights are kept")
    parser.add_argument("--read-bandwidth", type=float, help="imitate storage of so many bytes per second")
    json_option(parser, "decode")
    given = parser.parse_args(arguments)
    sizes = Sizes(given.layers, given.width, given.heads, given.vocabulary)
    if given.tokens < 2 or given.prompt < 1 or given.prompt + given.tokens > sizes.positions or sizes.width % sizes.heads:
        parser.error(f"prompt and 2 tokens or more are {sizes.positions} tokens at most, and heads divide the width")
    prompt = np.random.default_rng(1).integers(0, sizes.vocabulary, (1, given.prompt))
    models = [gpt2_decoder(count, given.prompt + given.tokens, sizes) for count in (given.prompt, 1)]
    judges = [rounded(model, given.weights).SerializeToString() for model in models]
    right = by_onnxruntime(judges, sizes, prompt, given.tokens, given.threads)
    written, table = Results.begin("benchmarks.lab.decode"), Table(COLUMNS)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="decode-") as folder:
        libraries = [Path(folder) / f"{name}.so" for name in ("prompt", "token")]
        for model, library in zip(models, libraries, strict=True):
            built = flexcomp.build(model, threads=given.threads, weights=given.weights, state=sizes.state)
            built.export_library(library)
        table.add(*right.cells("ONNX Runtime", right.tokens))
        wrong, ran = False, 0
        options = {} if given.read_bandwidth is None else {"read_bandwidth": given.read_bandwidth}
        for budget in given.budgets:
            try:
                done = by_us(libraries, prompt, given.tokens, budget, **options)
            except flexcomp.BudgetError as error:
                table.add(f"flexcomp, {budget}", *[None] * 4, f"not possible: {error}")
                continue
            table.add(*done.cells(f"flexcomp, {budget}", right.tokens))
            wrong |= done.tokens != right.tokens
            ran += 1
    written.write(given.json, [table])
    return int(wrong or ran == 0)


if __name__ == "__main__":
    sys.exit(main())
