"""Holds prose to plain words: rates per 1,000 words of riddling ones in documents, docstrings and comments.

    python scripts/lint_words.py [--list GROUP]

`what`, `behind`, `beside` and pronouns hide the noun that a reader needs. Rates above a group's limits fail, and so does a
paragraph of a document that is too long; `--list` prints where the words of a group stand.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = {"what": "what", "behind, beside": "behind|beside", "it, they": "it|they"}
# Groups of text, and the most words of each kind per 1,000.
LIMITS = {
    "guides": (2.0, 0.3, 6.0),
    "design": (2.0, 0.3, 6.0),
    "code": (2.0, 0.3, 6.0),
}
LONGEST = 120  # words of a paragraph
CODE = ("flexcomp", "passes", "schedules", "runtime_ext", "benchmarks")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`[^`\n]*`|\]\([^)]*\)")
_CC_COMMENT = re.compile(r"//+[^\n]*|/\*.*?\*/", re.DOTALL)

_BETWEEN = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)")  # paragraphs and items of lists

Text = tuple[Path, int, str]  # file, first line, prose


def documents(paths: list[Path]) -> Iterator[Text]:
    """The lines of Markdown files, without code."""
    for path in paths:
        text = _FENCE.sub(lambda block: "\n" * block.group().count("\n"), path.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            yield path, number, _QUOTED.sub(" ", line)


def long_paragraphs(path: Path) -> Iterator[str]:
    """Paragraphs of a Markdown file, without code and tables, that have more than LONGEST words."""
    for paragraph in _BETWEEN.split(_FENCE.sub("", path.read_text())):
        words = paragraph.split()
        if len(words) > LONGEST and not paragraph.lstrip().startswith("|"):
            yield f"{path.relative_to(ROOT)}: {len(words)} words (≤ {LONGEST}): {' '.join(words[:12])} …"


def python_prose(path: Path) -> Iterator[Text]:
    """Docstrings and comments of a Python file."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[0] if node.body else None
            if isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) and isinstance(body.value.value, str):
                yield path, body.lineno, _QUOTED.sub(" ", body.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield path, token.start[0], _QUOTED.sub(" ", token.string)


def native_prose(path: Path) -> Iterator[Text]:
    """Comments of a C++ file."""
    source = path.read_text()
    for comment in _CC_COMMENT.finditer(source):
        yield path, source.count("\n", 0, comment.start()) + 1, _QUOTED.sub(" ", comment.group())


def groups() -> dict[str, list[Text]]:
    """All prose of the project by group."""
    code: list[Text] = []
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix == ".py":
                code += python_prose(path)
            elif path.suffix in (".cc", ".h"):
                code += native_prose(path)
    design = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "operators.md"]
    guides = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
    return {"guides": list(documents(guides)), "design": list(documents(design)), "code": code}


def rates(texts: list[Text]) -> tuple[int, list[float]]:
    """The number of words, and of each kind of WORDS how many there are in 1,000."""
    total = sum(len(re.findall(r"[A-Za-z][\w'-]*", text)) for _, _, text in texts)
    found = [sum(len(re.findall(rf"\b(?:{kind})\b", text, re.I)) for _, _, text in texts) for kind in WORDS.values()]
    return total, [1000 * count / max(total, 1) for count in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", choices=LIMITS)
    chosen = parser.parse_args().list
    texts = groups()
    if chosen is not None:
        anything = re.compile(rf"\b(?:{'|'.join(WORDS.values())})\b", re.I)
        for path, line, text in texts[chosen]:
            if anything.search(text):
                print(f"{path.relative_to(ROOT)}:{line}: {' '.join(text.split())[:160]}")
        return 0
    failed = False
    for group, limits in LIMITS.items():
        total, measured = rates(texts[group])
        marks = [f"{name} {rate:.2f} (≤ {limit})" for name, rate, limit in zip(WORDS, measured, limits, strict=True)]
        print(f"{group}: {total:,} words; per 1,000: {', '.join(marks)}")
        failed |= any(rate > limit for rate, limit in zip(measured, limits, strict=True))
    long = [found for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) for found in long_paragraphs(path)]
    print("\n".join(long), end="\n" if long else "")
    return int(failed or bool(long))


if __name__ == "__main__":
    sys.exit(main())
