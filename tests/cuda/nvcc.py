"""Facts of nvcc's machine code: registers, spilled bytes, and the instructions of the longest loop."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flexcomp.compiler.cuda_code import CudaCode, translation_unit
from tests import kept

ARCHITECTURES = ("sm_75", "sm_80", "sm_87", "sm_90")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
# Purposes of instructions, by prefixes of their names; the first that fits.
_WORK = {
    "shared memory": ("LDS", "STS"),
    "loads": ("LD",),
    "widening": ("I2F", "F2F", "PRMT", "HADD", "HMUL", "I2I"),
    "conditions": ("ISETP", "LOP", "SHF", "PLOP", "SEL", "P2R", "R2P", "CS2R", "VOTE", "ULOP", "USHF", "UISETP", "USEL"),
    "addresses": ("IMAD", "IADD", "LEA", "MOV", "IMNMX", "UIMAD", "UIADD", "ULEA", "UMOV", "R2UR", "S2R", "VIADD", "VIMNMX"),
    "the loop": ("BAR", "BRA", "NOP", "BSSY", "BSYNC", "WARPSYNC"),
}
_LABEL = re.compile(r"^(\.L_x_\d+):", re.MULTILINE)


def nvcc() -> str | None:
    return shutil.which("nvcc")


def nvdisasm() -> str | None:
    """The disassembler: of a toolkit, or of the package nvidia-cuda-nvdisasm."""
    package = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    return shutil.which("nvdisasm") or next(map(str, sorted(package.glob("**/bin/nvdisasm"))), None)


@dataclass(frozen=True)
class Function:
    """A device function, compiled."""

    registers: int
    spilled_nbytes: int
    shared_nbytes: int


def compiled(codes: Sequence[CudaCode], architecture: str, folder: Path) -> tuple[Path, dict[str, Function]]:
    """A cubin, and ptxas' report on its functions."""
    source = translation_unit(codes)

    def make(path: Path) -> None:
        """Both in one file."""
        (folder / "code.cu").write_text(source)
        command = ["nice", nvcc(), f"-arch={architecture}", "-O3", "-cubin", "-Xptxas", "-v", "-o", "code.cubin", "code.cu"]
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        with zipfile.ZipFile(path, "w") as both:
            both.write(folder / "code.cubin", "code.cubin")
            both.writestr("report", told.stderr)

    with zipfile.ZipFile(kept.made("compiled.zip", [kept.compiler("nvcc"), architecture, source], make)) as both:
        cubin, report = Path(both.extract("code.cubin", folder)), both.read("report").decode()
    functions = {}
    for part in report.split("Compiling entry function '")[1:]:
        numbers = [
            re.search(pattern, part) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes smem")
        ]
        functions[part.split("'")[0]] = Function(*(int(found[1]) if found else 0 for found in numbers))
    return cubin, functions


def longest_loop(cubin: Path, function: str) -> list[str]:
    """The instructions of a function between the label and the jump back to it that lie farthest apart; none without loops."""
    text = _disassembled(cubin, cubin.stat().st_mtime_ns)
    text = re.search(rf"^\.text\.{function}:\n(.*?)(?=^\.text\.|\Z)", text, re.MULTILINE | re.DOTALL)[1]
    instructions = [(int(found[1], 16), found[2].strip()) for found in _INSTRUCTION.finditer(text)]
    labels = {}
    for found in _LABEL.finditer(text):
        if following := re.search(r"/\*([0-9a-f]{4,})\*/", text[found.end() :]):
            labels[found[1]] = int(following[1], 16)
    loops = [
        (labels[found[1]], at)
        for at, what in instructions
        if (found := re.search(r"BRA.*?(\.L_x_\d+)", what)) and labels.get(found[1], at) < at
    ]
    first, last = max(loops, key=lambda loop: loop[1] - loop[0], default=(0, -1))
    return [what for at, what in instructions if first <= at <= last]


@lru_cache(maxsize=1)
def _disassembled(cubin: Path, written_ns: int) -> str:
    return subprocess.run([nvdisasm(), cubin], capture_output=True, text=True, check=True).stdout


def share(instructions: Sequence[str], name: str) -> float:
    return sum(name in instruction for instruction in instructions) / len(instructions)


def shared_reads(instructions: Sequence[str]) -> frozenset[str]:
    """Widths of reads of shared memory; without reads that no thread does, which precede copies there on some GPUs."""
    return frozenset(found[1] for what in instructions if (found := re.search(r"(LDS[.\w]*) (?!RZ)", what)))


def besides(instructions: Sequence[str], name: str) -> str:
    """Purposes of instructions other than `name`, the most frequent first."""
    counts: Counter[str] = Counter()
    for instruction in instructions:
        called = re.sub(r"^@\S+\s+", "", instruction)
        if name not in called:
            counts[next((work for work, names in _WORK.items() if called.startswith(names)), called.split(".")[0])] += 1
    return ", ".join(f"{count / len(instructions):.0%} {work}" for work, count in counts.most_common(4))
