"""Text is that of the tokens, whole characters at a time, and ends where it is told to."""

import json

import pytest
from tokenizers import Tokenizer

import flexcomp
from flexcomp.errors import InputError
from flexcomp.generation import FolderTokenizer, Text
from flexcomp.generation.template import ChatTemplate
from tests.cli import calls
from tests.exporters.genai import VOCABULARY

from . import model_folder
from .model_folder import END


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model_folder.write(path)
    return path


@pytest.fixture
def text(library, folder):
    with flexcomp.load(library, threads=1) as session:
        yield Text(session, folder)


def replying(text: Text, tokens: list[int], monkeypatch) -> None:
    """Let the decoder say these tokens."""
    said = iter(tokens)
    monkeypatch.setattr("flexcomp.generation.sampling.Sampler.draw", lambda self, logits, earlier: next(said))


def test_pieces_are_whole_characters(text, monkeypatch):
    wanted = "caf\u00e9 \U0001f600 \u00fc"
    tokens = text.tokenizer.encode(wanted)
    assert len(tokens) > len(wanted)
    replying(text, tokens, monkeypatch)
    pieces = list(text.reply("the cat", len(tokens)))
    assert "".join(pieces) == wanted and all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("stop, wanted", [(["def"], "abc"), (["cd", "de"], "ab"), (["xyz"], "abcdefx"), (["f", "c"], "ab")])
def test_a_reply_ends_before_a_text(text, monkeypatch, stop, wanted):
    replying(text, text.tokenizer.encode("abcdefx"), monkeypatch)
    reply = text.reply("the cat", 7, stop=stop)
    assert "".join(reply) == wanted
    assert reply.reply.finish == ("length" if stop == ["xyz"] else "stop")


def test_a_reply_ends_at_the_model_s_own_token(text, monkeypatch):
    assert text.tokenizer.ends == {text.tokenizer.tokenizer.token_to_id(END)}
    replying(text, [*text.tokenizer.encode("ab"), *text.tokenizer.ends, 1], monkeypatch)
    reply = text.reply("the cat")
    assert "".join(reply) == "ab" and reply.reply.finish == "stop"


def test_conversations_have_the_model_s_form(text, monkeypatch):
    messages = [{"role": "user", "content": "the cat"}]
    assert text.tokenizer.conversation(messages) == f"user:the cat{END}a:"
    replying(text, text.tokenizer.encode("ok"), monkeypatch)
    reply = text.chat(messages, 2)
    assert "".join(reply) == "ok" and reply.reply.prompt_tokens == len(text.tokenizer.encode(f"user:the cat{END}a:"))


@pytest.mark.parametrize(
    "template, reason",
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{{ messages }}{% endfor %}{% endfor %}", "more than"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "refuses"),
        ("{% for %}", "refuses the messages: Expected"),
        ("{% set one = namespace(x='ab') %}{% for i in range(60) %}{% set one.x = one.x ~ one.x %}{% endfor %}", "MiB of memory"),
        ("{% macro one() %}{{ one() }}{% endmacro %}{{ one() }}", "without end"),
    ],
)
def test_templates_that_misbehave(folder, tmp_path, template, reason):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = FolderTokenizer(tmp_path)
    with pytest.raises(InputError, match=reason):
        tokenizer.conversation([{"role": "user", "content": "x"}])
    tokenizer.close()


def test_a_template_that_does_not_end_is_refused_and_later_conversations_are_formed():
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(f"{{% if messages %}}{endless}{{% endif %}}{{{{ eos_token }}}}", seconds=0)
    for _ in range(2):
        with pytest.raises(InputError, match="more than 0 s of computing"):
            template.conversation([{"role": "user", "content": "x"}], {})
        assert template.conversation([], {"eos_token": "<ä>"}) == "<ä>"
    process = template._process
    process.kill()  # as one that ended because nobody asked
    process.wait()
    assert template.conversation([], {"eos_token": "b"}) == "b"
    template.close()
    assert template._process is None


def test_tokens_that_the_model_s_files_suppress(library, folder, tmp_path):
    """As of Whisper, whose likeliest tokens would else be no speech."""
    def reply(settings: dict) -> list[int]:
        for path in folder.iterdir():
            (tmp_path / path.name).write_text(path.read_text())
        (tmp_path / "config.json").write_text(json.dumps({"suppress_tokens": [1], "begin_suppress_tokens": None}))
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        with flexcomp.load(library, threads=1) as session:
            text = Text(session, tmp_path).reply("the cat", 4)
            list(text)
            return text.reply.tokens

    first, second, *_ = plain = reply({"suppress_tokens": [-1]})
    assert reply({"suppress_tokens": [-1], "begin_suppress_tokens": [first]})[0] != first
    without = reply({"suppress_tokens": [first, second]})
    assert not {first, second} & {*without} and len(without) == len(plain) == 4
    with pytest.raises(InputError, match="suppress_tokens is no list of tokens"):
        reply({"suppress_tokens": "all"})
    with pytest.raises(InputError, match="suppressed tokens must be whole numbers from 0 to"):
        reply({"suppress_tokens": [1 << 20]})


@pytest.mark.parametrize(
    "files, reason",
    [
        ({}, "cannot read"),
        ({"tokenizer.json": "{}"}, "is no tokenizer"),
        ({"tokenizer.json": None, "tokenizer_config.json": "[]"}, "no JSON object"),
        ({"tokenizer.json": None, "generation_config.json": "{"}, "is no JSON"),
    ],
)
def test_folders_that_lack_something(library, tmp_path, folder, files, reason):
    for name, content in files.items():
        (tmp_path / name).write_text((folder / name).read_text() if content is None else content)
    with flexcomp.load(library, threads=1) as session, pytest.raises(InputError, match=reason):
        Text(session, tmp_path)


def test_a_tokenizer_of_another_model(library, tmp_path, folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"more{i}" for i in range(VOCABULARY)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with flexcomp.load(library, threads=1) as session, pytest.raises(InputError, match="another model's"):
        Text(session, tmp_path)


def test_the_command(library, folder):
    arguments = ["--prompt", "the cat", "--tokenizer", folder, "--max-tokens", "5", "--budget", "min", "--chat"]
    ended = calls.call("generate", library, *arguments)
    assert not ended.returncode and ended.stdout.endswith("\n") and "tokens after 10, the first after" in ended.stderr
    ended = calls.call("generate", library, "--prompt", "x", "--tokenizer", folder.parent)
    assert ended.returncode and "cannot read" in ended.stderr
