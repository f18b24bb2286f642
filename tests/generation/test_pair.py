"""Encoder-decoders out of a hub's folder: both libraries under one budget, tokens as ONNX Runtime's."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from tokenizers import Tokenizer

from flexcomp.errors import BudgetError, InputError
from flexcomp.generation import Generator, Pair, Text, encoder_library
from flexcomp.packaging import package
from flexcomp.runtime import read_summary
from flexcomp.serving.language import LanguageModel
from tests.cli import calls
from tests.exporters import encoding
from tests.exporters.encoding import MELS, ROWS, Form
from tests.generation import model_folder

CAPACITY = 20
SETTINGS = {
    "decoder_start_token_id": 3, "max_position_embeddings": CAPACITY, "vocab_size": encoding.VOCABULARY, "pad_token_id": 0,
    "num_mel_bins": MELS, "max_source_positions": ROWS,
}  # fmt: skip
TEXT, SOUND = Form(), Form(merged=True, sound=True)


@pytest.fixture(scope="module", params=[TEXT, SOUND], ids=["text", "sound"])
def form(request):
    return request.param


@pytest.fixture(scope="module")
def library(form, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    encoding.write(folder / "hub", form)
    model_folder.write(folder / "hub")
    (folder / "hub" / "config.json").write_text(json.dumps(SETTINGS))
    done = calls.call(
        "build", folder / "hub", "-o", folder / "out" / "model.so", "--threads", 1, "--no-probe", "--kernels", "smallest"
    )
    assert done.returncode == 0, done.stderr
    return folder / "out" / "model.so"


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


class Oracle:
    """Tokens of ONNX Runtime, which computes each sequence anew, without caches."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.encoder, self.decoder = session_of(encoding.encoder(form)), session_of(encoding.decoder(form, False))

    def tokens(self, source, prompt, count):
        mask = {} if self.form.sound else {"attention_mask": np.ones((1, len(source)), np.int64)}
        given = {"input_features": source} if self.form.sound else {"input_ids": np.int64([source])} | mask
        (hidden,) = self.encoder.run(None, given)
        needs = {"encoder_hidden_states": hidden} | {f"encoder_{name}": value for name, value in mask.items()}
        sequence = list(prompt)
        for _ in range(count):
            logits = self.decoder.run(["logits"], needs | {"input_ids": np.int64([sequence])})[0]
            sequence.append(int(logits[0, -1].argmax()))
        return sequence[len(prompt) :]


@pytest.fixture(scope="module")
def oracle(form):
    return Oracle(form)


def source_of(form, seed):
    rng = np.random.default_rng(seed)
    if form.sound:
        return rng.standard_normal((1, MELS, 2 * ROWS)).astype("f4")
    return rng.integers(2, encoding.VOCABULARY, [5, 17, CAPACITY][seed]).tolist()


@pytest.mark.parametrize("budget", ["min", "all"])
def test_replies(form, library, oracle, budget):
    """One after the other, and in turns: each has caches of its own for what was encoded."""
    with Pair(library, budget) as pair:
        assert pair.stay_open == (budget == "all")
        generator = Generator(pair)
        for seed in (0, 1, 2):
            source = source_of(form, seed)
            assert list(generator.reply([3, 5], 6, source=source)) == oracle.tokens(source, [3, 5], 6)
        replies = [generator.reply([3], 4, source=source_of(form, seed)) for seed in (0, 1)]
        found = [[next(reply) for reply in replies] for _ in range(4)]
        assert [list(one) for one in zip(*found, strict=True)] == [oracle.tokens(source_of(form, i), [3], 4) for i in (0, 1)]
        assert pair.stats()["arena_bytes"] <= pair.budget
        read = pair.stats()["total_bytes_read"]
        assert read > 0


def test_the_smallest_budget_is_that_of_the_larger_one(library):
    """And what goes from one to the other; the other one's memory has been given back meanwhile."""
    with Pair(library, "min") as pair:
        needs = [read_summary(one)["min_budget_bytes"] for one in (library, encoder_library(library))]
        assert pair.budget == max(needs) + pair.carried_nbytes
        with pytest.raises(BudgetError, match="too small"):
            Pair(library, pair.budget - 1)
        decoder = pair.session
        pair.encode(source_of(SOUND if pair.takes_features else TEXT, 0))
        assert decoder.closed and pair.session is not decoder
    with pytest.raises(InputError, match="are closed"):
        pair.session  # noqa: B018


def test_what_an_encoder_does_not_take(form, library):
    with Pair(library, "min") as pair:
        generator = Generator(pair)
        with pytest.raises(InputError, match="depends on another one"):
            generator.reply([3], 1)
        wrong = np.zeros((1, MELS, 3), "f4") if form.sound else list(range(CAPACITY + 1))
        with pytest.raises(InputError, match=r"not \(1, 6, 3\)" if form.sound else f"1 to {CAPACITY} tokens, not {CAPACITY + 1}"):
            generator.reply([3], 1, source=wrong)
        wrong = [1, 2] if form.sound else np.zeros((1, 3), "f4")
        with pytest.raises(InputError, match="features, an array of floats" if form.sound else "tokens of a text, not an array"):
            generator.reply([3], 1, source=wrong)
        with pytest.raises(InputError, match="no conversations"):
            Text(pair, library.parent).chat([{"role": "user", "content": "a"}])


def test_the_command(form, library, oracle, tmp_path):
    tokenizer = Tokenizer.from_file(str(library.parent / "tokenizer.json"))
    given = ["--prompt", "the cat"]
    source, prompt = tokenizer.encode("the cat").ids, [3]
    if form.sound:
        source, prompt = source_of(form, 1), [3, *source]
        np.save(tmp_path / "sound.npy", source[0])
        given += ["--features", tmp_path / "sound.npy"]
    done = calls.call("generate", library, *given, "--max-tokens", 5, "--budget", "min")
    assert done.returncode == 0, done.stderr
    wanted = oracle.tokens(source, prompt, 5)
    text = tokenizer.decode(wanted).rstrip("�")  # bytes that are no whole character are not printed
    assert done.stdout == text + "\n" and f"5 tokens after {len(prompt)}" in done.stderr
    wrong = calls.call("generate", library, *(given[:2] if form.sound else ["--features", tmp_path / "none.npy"]))
    assert wrong.returncode == 2 and ("features, as source" if form.sound else "cannot read") in wrong.stderr


def test_a_package_has_both(form, library, tmp_path):
    names = package(library, tmp_path / "packed")
    assert {"model.so", "model.weights", "model.encoder.so", "model.encoder.weights", "tokenizer.json", "config.json"} < {*names}
    readme = (tmp_path / "packed" / "README").read_text()
    assert "model.encoder.so runs before model.so" in readme and "--prompt" in readme and "--chat" not in readme
    if not form.sound:
        options = ["--prompt", "the cat", "--max-tokens", 2, "--budget", "min"]
        done = calls.call("generate", tmp_path / "packed" / "model.so", *options)
        assert done.returncode == 0 and "2 tokens after" in done.stderr, done.stderr


def test_a_server_refuses_it(library):
    with pytest.raises(InputError, match="of an encoder-decoder, which a server does not run"):
        LanguageModel(library, 1 << 24, 1, 1)
