"""Replies are texts of their grammar, with the distribution that the grammar leaves; probabilities are those before it."""

import json
import re

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

import flexcomp
from flexcomp.errors import InputError
from flexcomp.generation import JSON_OBJECT, Generator, Grammar, Sampling, Text, TokenBytes
from flexcomp.generation.speculation import Account

SCHEMA = {
    "type": "object", "properties": {"cat": {"type": "boolean"}, "n": {"type": "integer"}}, "required": ["cat", "n"],
    "additionalProperties": False,
}  # fmt: skip
RULES = 'start: "the " ("cat" | "bird") /[a-z]{0,6}/'


@pytest.fixture(scope="module")
def text(library):
    with flexcomp.load(library, threads=1) as session:
        yield Text(session, library.parent)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("speculate", [False, True])
def test_replies_are_texts_of_the_grammar(text, seed, speculate, monkeypatch, even_pace):
    monkeypatch.setattr(text.generator, "_account", Account(text.generator.decoder, speculate))
    for grammar, right in (
        (Grammar.json_schema(SCHEMA), lambda found: json.loads(found).keys() == {"cat", "n"}),
        (Grammar.lark(RULES), lambda found: re.fullmatch("the (cat|bird)[a-z]{0,6}", found)),
    ):
        reply = text.reply("the cat", 200, sampling=Sampling(temperature=2.0, seed=seed, grammar=grammar))
        found = "".join(reply)
        assert right(found), found
        assert reply.reply.finish == "stop"
    whole = "".join(text.reply("the cat", 400, sampling=Sampling(grammar=Grammar.json_schema(JSON_OBJECT))))
    assert not re.search(r"[ \n]{41}", whole)


def test_a_reply_that_is_cut_is_the_beginning_of_a_text(text):
    reply = text.reply("x", 5, sampling=Sampling(temperature=2.0, seed=1, grammar=Grammar.json_schema(SCHEMA)))
    assert "".join(reply).startswith("{") and reply.reply.finish == "length"


@pytest.mark.parametrize(
    "grammar, reason",
    [
        (Grammar.json_schema({"type": "foo"}), "Invalid type: foo"),
        (Grammar.json_schema({"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
        (Grammar.json_schema({"not": {"type": "string"}}), "Unimplemented keys"),
        (Grammar.json_schema({"$ref": "http://localhost/x"}), "not present in a registry"),
        (Grammar.lark("start: other"), "other"),
        (Grammar.lark(""), "Empty grammar"),
        (Grammar.lark('start: "%"'), "refused|no token"),  # which the tokenizer has not
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_grammars_that_are_refused(text, grammar, reason):
    with pytest.raises(InputError, match=reason):
        list(text.reply("x", 9, sampling=Sampling(grammar=grammar)))


def test_a_grammar_that_grows_is_refused(text):
    grammar = Grammar.lark("start: /(.*a.{200}b)|(.*b.{300}c)/")
    with pytest.raises(InputError, match="states"):
        list(text.reply("x", 1500, sampling=Sampling(temperature=5.0, seed=1, grammar=grammar)))


def test_a_generator_without_text_has_no_grammars(text):
    with pytest.raises(InputError, match="Text"):
        Generator(text.generator.decoder.session).reply([1], sampling=Sampling(grammar=Grammar.lark(RULES)))


def test_log_probabilities_are_those_of_the_decoder(text, following):
    sampling = Sampling(temperature=0.8, top_k=3, seed=4, presence_penalty=2.0, logprobs=3)
    prompt = text.tokenizer.encode("the cat")
    reply = text.reply("the cat", 12, sampling=sampling).reply
    tokens = list(reply)
    assert len(reply.chances) == len(tokens) > 4
    for place, (token, chance) in enumerate(zip(tokens, reply.chances, strict=True)):
        scores = following([*prompt, *tokens[:place]]).astype(float)
        wanted = scores - np.log(np.exp(scores).sum())
        assert chance.logprob == pytest.approx(wanted[token], abs=1e-4)
        order = np.argsort(-wanted)[:3]
        assert [one for one, _ in chance.likeliest] == order.tolist()
        assert [value for _, value in chance.likeliest] == pytest.approx(wanted[order], abs=1e-4)


def test_bytes_of_tokens(text):
    found, letters = TokenBytes(text.tokenizer.tokenizer), "the cat, ä."
    assert b"".join(map(found.of, text.tokenizer.encode(letters))) == letters.encode()
    assert found.of(0) == b"<end>" and found.of(10_000) == b""
    names = {"<unk>": 0, "▁the": 1, "<0xC3>": 2, "<0xA4>": 3, "at": 4}
    other = Tokenizer(models.BPE(names, [], unk_token="<unk>", byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    other.decoder = decoders.Sequence(parts)
    assert [TokenBytes(other).of(token) for token in range(1, 5)] == [b" the", b"\xc3", b"\xa4", b"at"]
    words = Tokenizer(models.WordPiece({"<unk>": 0, "the": 1, "##re": 2}, unk_token="<unk>"))
    words.decoder = decoders.WordPiece()
    assert TokenBytes(words).of(1) == b"the"
