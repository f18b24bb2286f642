"""Libraries and weights that are missing, damaged, of other models or other machines."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import tvm_ffi

import flexcomp
from flexcomp.errors import ArtifactError, StorageError, TargetError
from flexcomp.program.program_bytes import _MAGIC, PROGRAM_VERSION
from flexcomp.runtime import runner
from tests.runtime.tiny import close_to


def load_copy(copy, **options):
    library, weights = copy
    return flexcomp.load(library, weights=weights, **options)


def test_missing_files(tiny, tmp_path, copy):
    library, weights = copy
    with pytest.raises(ArtifactError, match=r"cannot open .*nothing.so: No such file"):
        flexcomp.load(tmp_path / "nothing.so")
    with pytest.raises(ArtifactError, match=r"nothing.weights is missing"):
        flexcomp.load(tiny.library, weights=tmp_path / "nothing.weights")
    with flexcomp.load(library, weights=weights) as session:
        assert session.budget


def test_cut_weights_are_refused(copy):
    raw = copy[1].read_bytes()
    for wrong in (raw[:-1], raw[: len(raw) // 2], raw + b"\0", b""):
        copy[1].write_bytes(wrong)
        with pytest.raises(ArtifactError, match="cut short or belongs to another model"):
            load_copy(copy)


def test_swapped_weights_are_refused(other, copy, x):
    shutil.copy(other.weights, copy[1])
    assert other.weights.stat().st_size == copy[0].resolve().with_suffix(".weights").stat().st_size
    with pytest.raises(ArtifactError, match="belongs to another model"):
        load_copy(copy)


def test_flipped_header_bytes_are_refused(tiny, copy):
    raw = copy[1].read_bytes()
    rng = np.random.default_rng(3)
    for at in [0, 7, 8, *rng.integers(0, tiny.digest.header_nbytes, 200)]:
        damaged = bytearray(raw)
        damaged[at] ^= 4
        copy[1].write_bytes(damaged)
        with pytest.raises(ArtifactError, match="damaged or belongs to another model"):
            load_copy(copy)


def test_flipped_weights_are_found_when_asked_for(tiny, copy, x):
    raw = copy[1].read_bytes()
    header, rng = tiny.digest.header_nbytes, np.random.default_rng(4)
    places = [c.offset for c in tiny.digest.checksums] + [c.offset + c.nbytes - 1 for c in tiny.digest.checksums]
    places.append(6 * 256 * 256 * 4 + 100)  # the gap before the last tensor
    for at in [*places, *rng.integers(0, 6 * 256 * 256 * 4, 40)]:
        damaged = bytearray(raw)
        damaged[header + at] ^= 1
        copy[1].write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"is damaged: the checksum .* \(layer (mv\d|mul)\)"):
            load_copy(copy, verify=True)
        load_copy(copy).close()
    copy[1].write_bytes(raw)
    with load_copy(copy, verify=True) as session:
        close_to(session(x), tiny.reference(x))


def test_weights_cut_while_open(tiny, copy, x):
    """The file shrinks under an open session: an error, not stale weights; the next session is right."""
    raw = copy[1].read_bytes()
    with load_copy(copy, budget="min") as session:
        close_to(session(x), tiny.reference(x))
        with open(copy[1], "r+b") as file:
            file.truncate(len(raw) // 2 // 4096 * 4096)
        with pytest.raises(StorageError, match="was changed while the session had it open: open the model again"):
            session(x)
        copy[1].write_bytes(raw)
        with pytest.raises(StorageError, match="was changed"):  # nobody knows to what
            session(x)
    with load_copy(copy, budget="min") as session:
        close_to(session(x), tiny.reference(x))


def test_foreign_libraries_are_refused(tmp_path, tiny):
    text = tmp_path / "text.so"
    text.write_text("not a library, whatever its name says")
    with pytest.raises(ArtifactError, match="not a shared library"):
        flexcomp.load(text)
    os.mkfifo(tmp_path / "pipe.so")
    with pytest.raises(ArtifactError, match="not a shared library"):
        flexcomp.load(tmp_path / "pipe.so")
    cut = tmp_path / "cut.so"
    cut.write_bytes(tiny.library.read_bytes()[:5000])
    with pytest.raises(ArtifactError, match="is cut short: 5000 bytes"):
        flexcomp.load(cut)
    foreign = bytearray(tiny.library.read_bytes())
    foreign[18:20] = b"\xb7\0" if foreign[18] != 0xB7 else b"\x3e\0"
    cut.write_bytes(foreign)
    with pytest.raises(TargetError, match="was compiled for"):
        flexcomp.load(cut)


def test_a_library_of_another_format_is_named(tmp_path, tiny):
    raw = bytearray(tiny.library.read_bytes())
    head = _MAGIC + PROGRAM_VERSION.to_bytes(4, "little")
    assert raw.count(head) == 1
    raw[raw.index(head) + len(_MAGIC)] += 1
    (tmp_path / "newer.so").write_bytes(raw)
    said = f"cannot load {tmp_path / 'newer.so'}: the program has format {PROGRAM_VERSION + 1}"
    with pytest.raises(ArtifactError, match=said):
        flexcomp.load(tmp_path / "newer.so")
    with pytest.raises(ArtifactError, match=said):
        runner.run(tmp_path / "newer.so")


def test_missing_cpu_features_are_named(tiny, tmp_path):
    import dataclasses

    from flexcomp.program.program_bytes import PROGRAM_KIND
    from tests.by_hand import encode_program

    program = dataclasses.replace(tiny.program, features=("imaginary", "fantastic"))
    module = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")(encode_program(program, tiny.digest))
    with pytest.raises(RuntimeError, match='compiled for "llvm"; this processor lacks imaginary, fantastic') as caught:
        module.get_function("open")(str(tiny.weights), "{}")
    assert caught.value.__tvm_ffi_error__.kind == "TargetError"
