"""Digests of weights, by which models of a pool find equal ones."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest

from flexcomp.errors import ArtifactError
from flexcomp.program import decode_program, write_weights
from flexcomp.program.digest import LEAST_DIGESTED, WeightsDigest, from_metadata, to_metadata
from flexcomp.program.program_bytes import decode_weights_digest
from tests import by_hand
from tests.by_hand import encode_program
from tests.runtime import tiny


def test_digests_are_of_the_stored_bytes_of_large_tensors(tmp_path):
    large, small = np.arange(LEAST_DIGESTED, dtype="u1"), np.ones(LEAST_DIGESTED - 1, "u1")
    written = write_weights(tmp_path / "w", [("small", small), ("large", large, 2 * LEAST_DIGESTED)])
    assert written.digests == {(2 * LEAST_DIGESTED, large.nbytes): blake2b(large.tobytes(), digest_size=16).digest()}


def test_programs_bring_digests_of_their_layers(tmp_path):
    written = write_weights(tmp_path / "w", tiny.weight_entries(np.ones((2, tiny.N, tiny.N), "f4"), np.ones(tiny.N, "f4")))
    program = tiny.make_program(2, "digested_")
    blob = encode_program(program, written)
    assert decode_program(blob) == by_hand.written(program) and decode_weights_digest(blob).digests == written.digests
    assert encode_program(program, decode_weights_digest(blob)) == blob
    assert len(set(written.digests.values())) == 1  # equal tensors


def test_unknown_digests_and_other_text():
    known = {(0, LEAST_DIGESTED): b"0123456789abcdef"}
    ranges = [(64, LEAST_DIGESTED), (0, LEAST_DIGESTED), (128, 100)]
    text = to_metadata(ranges, known)["digests"]
    assert len(text) == 44 < 0.001 * 2 * LEAST_DIGESTED and from_metadata(ranges, text) == known
    assert to_metadata(ranges, {}) == {}
    for wrong in (text[1:], "?" * 44):
        with pytest.raises(ValueError):
            from_metadata(ranges, wrong)
    program = tiny.make_program(1, "digested_", {"digests": "AA"})
    with pytest.raises(ArtifactError, match="2 letters are not the digests of 1 weights"):
        decode_program(encode_program(program, WeightsDigest(4096, 0, program.weights_nbytes, ())))
