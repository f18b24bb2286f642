"""NVIDIA's compiler: CUDA C of a kernel becomes machine code for one architecture, and PTX for later ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flexcomp.errors import TargetError
from flexcomp.program import Image, Kind
from flexcomp.schedules.cuda import Architecture

from .cuda_code import CudaCode, translation_unit

_FOLDERS = ("CUDA_HOME", "CUDA_PATH")  # variables that name a toolkit
_ADDED_OPTIONS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_OPTIONS = ("-cubin", "-O3", "-w", "--keep", "--keep-dir=.")  # keeps PTX
_WAY_OUT = (
    "install NVIDIA's CUDA toolkit (on Debian apt-get install nvidia-cuda-toolkit, or from developer.nvidia.com), and put nvcc "
    "on the PATH or name the toolkit's folder in CUDA_HOME"
)


@dataclass(frozen=True)
class Nvcc:
    """An nvcc that is there."""

    path: str

    @classmethod
    def found(cls) -> Nvcc:
        """That of the toolkit in CUDA_HOME or CUDA_PATH, or else on the PATH. Raises TargetError if there is none."""
        named = [(name, os.environ[name]) for name in _FOLDERS if os.environ.get(name)]
        for name, folder in named:
            path = shutil.which("nvcc", path=str(Path(folder) / "bin"))
            if path is None:
                raise TargetError(f"kernels for GPUs are compiled by nvcc, which is not in {name}={folder}: {_WAY_OUT}")
            return cls(os.path.abspath(path))
        path = shutil.which("nvcc")
        if path is None:
            raise TargetError(f"kernels for GPUs are compiled by nvcc, which is missing: {_WAY_OUT}")
        return cls(os.path.abspath(path))

    def require(self, architecture: Architecture) -> None:
        """Raise TargetError for an architecture that nvcc lacks."""
        known = re.findall(r"sm_\d+", _answer(self.path, "--list-gpu-code"))
        if architecture.name not in known:
            raise TargetError(
                f"{self.path} makes no code for {architecture.name}, only for {', '.join(known)}: name the folder of another "
                "CUDA toolkit in CUDA_HOME (CUDA 12 is the last for sm_72)"
            )

    def version(self) -> str:
        """The key that tells its machine code from that of other toolkits."""
        return _answer(self.path, "--version")

    def images(self, code: CudaCode, architecture: Architecture) -> tuple[Image, ...]:
        """A cubin for the architecture, and its PTX."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "kernel.cu").write_text(translation_unit([code]))
            # By names without a folder, which would otherwise be in the results.
            command = [self.path, f"-arch={architecture.name}", *_OPTIONS, "-o", "kernel.cubin", "kernel.cu"]
            # Options from elsewhere would change results, and the cache would keep these kernels.
            environment = {name: value for name, value in os.environ.items() if name not in _ADDED_OPTIONS}
            told = subprocess.run(
                command, cwd=folder, env=environment | {"TMPDIR": folder}, capture_output=True, text=True, check=False
            )
            if told.returncode:
                raise TargetError(f"{self.path} cannot compile a kernel for {architecture.name}: {_reason(told)}")
            cubin, ptx = ((Path(folder) / f"kernel.{kind}").read_bytes() for kind in ("cubin", "ptx"))
        number = int(architecture.name.removeprefix("sm_"))
        return Image(number, Kind.CUBIN, cubin), Image(number, Kind.PTX, ptx + b"\0")


def _reason(told: subprocess.CompletedProcess[str]) -> str:
    """The line that says most."""
    lines = (told.stderr + told.stdout).strip().splitlines()
    errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return (errors or lines or [f"it ended with {told.returncode}"])[0]


@cache
def _answer(path: str, option: str) -> str:
    told = subprocess.run([path, option], capture_output=True, text=True, check=False)
    if told.returncode:
        raise TargetError(f"{path} is no nvcc: it does not understand {option}")
    return told.stdout
