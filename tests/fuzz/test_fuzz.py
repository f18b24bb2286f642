"""The fuzzers know the format that there is: what they are made from is the grammar, and it says where every byte belongs."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.program.digest import WeightsDigest
from flexcomp.program.program_bytes import PROGRAM_KIND
from tests.by_hand import encode_program
from tests.fuzz.grammar import Term, as_cpp, rules
from tests.runtime import tiny

_SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4, "i64": 8, "f64": 8}


class Walk:
    """Goes through the bytes of a program by the grammar alone."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.rules = data, 0, rules()
        self.counts: dict[str, int] = {}  # of the lists whose length says how often something else is repeated
        self.met: set[str] = set()  # names of terms

    def rule(self, name: str) -> None:
        alternatives = self.rules[name]
        chosen = alternatives
        if len(alternatives) > 1:
            chosen = [terms for terms in alternatives if terms[0].constant == str(self.data[self.at])]
        for term in chosen[0]:
            count = 1
            if term.repeat == "list":
                count = self.number(4)
                self.counts[term.name] = count
            elif term.repeat != "once":
                count = self.counts[f"body.{term.repeat}"]
            for _ in range(count):
                self.term(term)

    def term(self, term: Term) -> None:
        self.met.add(term.name)
        if term.kind in self.rules:
            self.rule(term.kind)
        elif term.kind == "str":
            length = self.number(4)
            self.at += length
        elif term.kind == "literal":
            assert self.data[self.at :].startswith(term.constant.encode())
            self.at += len(term.constant)
        else:
            value = self.number(_SIZES[term.kind])
            assert term.constant is None or value == int(term.constant), term

    def number(self, nbytes: int) -> int:
        value = int.from_bytes(self.data[self.at : self.at + nbytes], "little")
        self.at += nbytes
        return value


def test_the_grammar_says_where_every_byte_of_a_program_belongs():
    program = tiny.make_program(3, "tiny_", {"key": "value"})
    blob = encode_program(program, WeightsDigest(4096, 0, program.weights_nbytes, ()))
    walk = Walk(blob)
    walk.rule("program")
    assert walk.at == len(blob)
    plan = {"step.weights_at", "operation.load", "run.after", "tape.need", "plan.value_at"}
    assert plan | {"arg.written", "layer.weights_at", "rung.nbytes"} <= walk.met


def test_a_line_that_is_no_grammar_is_noticed():
    text = '    program  = "X" version:u32=3 body\n    body     = a:u32 b:what\n    str      = …'
    with pytest.raises(AssertionError, match="the grammar cannot be read: body"):
        rules(text)


def test_tables_have_every_rule():
    table = as_cpp(rules())
    assert table.count("\n{\n") == len(rules())
    assert 'Kind::u32, "step.count"' in table and 'Repeat::values' in table


def test_programs_that_the_fuzzer_kept_are_read_or_refused():
    runtime_ext.register()
    create = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")
    read = 0
    for path in sorted((Path(__file__).parent / "corpus" / "program").iterdir()):
        try:
            create(path.read_bytes())
            read += 1
        except RuntimeError as error:
            assert error.__tvm_ffi_error__.kind == "ArtifactError", path.name
    assert read > 0
