"""AArch64 assembly of a kernel: its innermost loops, their operations, and llvm-mca's judgement."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_LABEL = re.compile(r"([.\w$]+):")
_BRANCH = re.compile(r"(?:b|b\.\w+|bc\.\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?([.\w$]+)$")
_VECTOR_FMA = re.compile(r"(fmla|sdot)\s+v\d+\.(4s|8h)")
_PRODUCTS = {"fmla 4s": 4, "fmla 8h": 8, "sdot 4s": 16}
_STACK = re.compile(r"(?:ld|st)\w*\s.*\[sp\b")
_WIDENING = re.compile(r"(?:fcvtl|shll|[su]shll|[su]xtl|[su]cvtf)2?\b")
_VECTOR_STORE = re.compile(r"st(p)?(?:ur|r)?\s+q")
_STORE = re.compile(r"st\w*\s")
_TRIPLE = "aarch64-linux-gnu"
_ITERATIONS = 400
_OLDEST = 17  # version of LLVM


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its instructions, without labels and comments."""

    instructions: tuple[str, ...]

    @cached_property
    def fmas(self) -> int:
        """Fused multiply-adds of four floats or eight halves, and dot products of sixteen bytes."""
        return sum(bool(_VECTOR_FMA.match(line)) for line in self.instructions)

    @cached_property
    def products(self) -> int:
        """Of those multiply-adds."""
        found = (_VECTOR_FMA.match(line) for line in self.instructions)
        return sum(_PRODUCTS[f"{match[1]} {match[2]}"] for match in found if match)

    @cached_property
    def spills(self) -> int:
        """Reads and writes of the stack."""
        return sum(bool(_STACK.match(line)) for line in self.instructions)

    @cached_property
    def stores(self) -> int:
        """Writes to memory other than the stack."""
        return sum(bool(_STORE.match(line) and not _STACK.match(line)) for line in self.instructions)

    @cached_property
    def converts(self) -> bool:
        """Whether narrow numbers become wider ones."""
        return any(_WIDENING.match(line) for line in self.instructions)

    @cached_property
    def stored_vectors(self) -> int:
        """Registers of 128 bits that are written."""
        return sum(1 + bool(match[1]) for line in self.instructions if (match := _VECTOR_STORE.match(line)))


def loops(assembly: str) -> Iterator[Loop]:
    """All loops without a loop inside, in the order of the text."""
    lines = list(_lines(assembly))
    labels = {match[1]: i for i, line in enumerate(lines) if (match := _LABEL.fullmatch(line))}
    spans = []
    for end, line in enumerate(lines):
        match = _BRANCH.fullmatch(line)
        if match and labels.get(match[1], end) < end:
            spans.append((labels[match[1]], end))
    for start, end in spans:
        if not any((start, end) != (low, high) and start <= low and high <= end for low, high in spans):
            yield Loop(tuple(line for line in lines[start : end + 1] if not _LABEL.fullmatch(line)))


def _lines(assembly: str) -> Iterator[str]:
    for line in assembly.splitlines():
        line = " ".join(line.split("//")[0].split())
        is_block = re.fullmatch(r"\.LBB\w+:", line)
        if line and (is_block or not line.startswith(".")):
            yield line


def find_llvm_mca() -> str | None:
    """The newest llvm-mca of version 17 or later, the first with models of the cores that matter here.

    Debian's packages carry the version in the name. An older one would judge by another core's model without a word.
    """
    for name in (*(f"llvm-mca-{version}" for version in range(30, _OLDEST - 1, -1)), "llvm-mca"):
        if shutil.which(name):
            text = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            match = re.search(r"version (\d+)", text)
            if match and int(match[1]) >= _OLDEST:
                return name
    return None


def cycles(loop: Loop, model: str, mca: str) -> float:
    """Cycles of one iteration on LLVM's model of a core, with every load a hit of the first-level cache."""
    command = [mca, f"-mtriple={_TRIPLE}", f"-mcpu={model}", f"-iterations={_ITERATIONS}"]
    text = "\n".join(loop.instructions) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return int(re.search(r"Total Cycles:\s+(\d+)", done.stdout)[1]) / _ITERATIONS
