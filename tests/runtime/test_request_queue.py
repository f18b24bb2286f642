"""The order of a pool's requests, and which of them are admitted."""

from __future__ import annotations

from flexcomp import runtime_ext
from tests.runtime import native


def test_what_is_foreseen_is_what_happens(tmp_path):
    options = ["-O1", *(f"-I{folder}" for folder in runtime_ext.include_folders())]
    pool = runtime_ext.include_folders()[0]
    native.run(native.compile(tmp_path, "request_queue.cc", ["pool/request_queue.cc"], options, sources=pool))
