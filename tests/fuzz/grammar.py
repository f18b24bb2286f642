"""The grammar of programs as tables, read from where it stands: the docstring of `flexcomp.program.program_bytes`.

`python -m tests.fuzz.grammar OUTPUT` writes it as C++ for the mutator (`program_tree.cc`), which so never knows another
format than the reader does.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from flexcomp.program import program_bytes

_NUMBERS = ("u8", "u16", "u32", "u64", "i32", "i64", "f64")
_TERM = re.compile(r'"(?P<literal>\w+)"|(?:(?P<name>\w+):)?(?P<type>list<[^>]+>|\w+(?:\[len\(\w+\)\])?)(?:=(?P<constant>\d+))?')


@dataclass(frozen=True)
class Term:
    """A part of a record: `kind` is a number's type, "str", "literal", or the name of a rule."""

    kind: str
    name: str
    repeat: str = "once"  # "list": behind a count; "values", "rungs": once for each item of that list
    constant: str | None = None


Rules = dict[str, list[list[Term]]]  # alternatives; those of a rule with several begin with different constants


def rules(text: str = program_bytes.__doc__) -> Rules:
    """The rules by name, from the lines of the docstring that are a part of the grammar."""
    block = text[text.index("    program  =") : text.index("    str      =")]
    names = re.findall(r"^ {4}(\w+) *=", block, re.MULTILINE)
    result: Rules = {}
    current = ""
    for line in block.splitlines():
        head = re.match(r" {4}(\w+) *= (.*)", line)
        if head:
            current, rest = head.groups()
            result[current] = [[]]
        elif bar := re.match(r" +\| (.*)", line):
            result[current].append([])
            rest = bar[1]
        else:
            rest = line.strip()
        rest = re.split(r" {2,}", rest)[0]  # what follows is a comment
        terms = _terms(rest, current, names, result)
        if terms is not None:
            result[current][-1] += terms
        else:
            assert not head, f"the grammar cannot be read: {line.strip()}"
    assert all(all(alternative for alternative in alternatives) for alternatives in result.values())
    return result


def _terms(text: str, rule: str, names: list[str], result: Rules) -> list[Term] | None:
    """The terms of a line; None if it is prose."""
    terms, at = [], 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None:
            return None
        at = match.end() + 1
        if match["literal"]:
            terms.append(Term("literal", f"{rule}.literal", constant=match["literal"]))
            continue
        kind, repeat = match["type"], "once"
        if kind.startswith("list<"):
            kind, repeat = kind[5:-1], "list"
        elif kind.endswith("]"):
            kind, repeat = kind.removesuffix(")]").split("[len(")
        name, constant = match["name"] or kind, match["constant"]
        if name.isdigit():
            name, constant = "tag", name
        if " " in kind:  # a record without a name
            inner = f"{rule}.{name}"
            result[inner] = [_terms(kind, inner, names, result) or []]
            kind = inner
        if kind not in (*_NUMBERS, "str", *names, *result):
            return None
        terms.append(Term(kind, f"{rule}.{name}", repeat, constant))
    return terms


def as_cpp(table: Rules) -> str:
    """The table as initialisers of the structs of program_tree.cc."""
    index = {name: number for number, name in enumerate(table)}
    lines = ["// Made by tests/fuzz/grammar.py from flexcomp/program/program_bytes.py."]
    for alternatives in table.values():
        lines.append("{")
        for terms in alternatives:
            lines.append("  {")
            for term in terms:
                kind = f"Kind::{term.kind}" if term.kind in (*_NUMBERS, "str", "literal") else "Kind::rule"
                constant = "nullptr" if term.constant is None else f'"{term.constant}"'
                rule = index.get(term.kind, -1)
                lines.append(f'    {{{kind}, "{term.name}", {rule}, Repeat::{term.repeat}, {constant}}},')
            lines.append("  },")
        lines.append("},")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_cpp(rules()))
