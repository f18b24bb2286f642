import dataclasses
import json
import random
import struct
import zlib

import numpy as np
import pytest
import tvm_ffi
from safetensors.numpy import load_file

from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError
from flexcomp.program.program import PAGE, TensorType, Value, Weights
from flexcomp.program.program_bytes import PROGRAM_KIND, decode_program, decode_weights_digest
from flexcomp.program.weights_file import write_weights
from tests.by_hand import encode_program, written
from tests.runtime import tiny as builder


@pytest.fixture(scope="module")
def create():
    """The C++ reader: returns the module, raises RuntimeError whose kind is ArtifactError."""
    runtime_ext.register()
    return tvm_ffi.get_global_func(PROGRAM_KIND + ".create")


def refuse(create, blob, match):
    with pytest.raises(RuntimeError, match=match) as caught:
        create(blob)
    assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"


HEAD = struct.Struct("<QQQdQQIIIIQI")  # of a rung: in the end the bytes of its plan and their checksum
RUNGS = 3


def heads_at(blob: bytes) -> list[int]:
    """Where the heads of the rungs are: before the plans."""
    (plans_at,) = struct.unpack_from("<Q", blob, 24)
    return [plans_at - HEAD.size * left for left in range(RUNGS, 0, -1)]


def reseal(blob: bytes | bytearray) -> bytes:
    """The same bytes with the right size and checksums."""
    sealed = bytearray(blob)
    struct.pack_into("<Q", sealed, 16, len(sealed))
    (plans_at,) = struct.unpack_from("<Q", sealed, 24)
    at = plans_at
    for head in heads_at(sealed) if 32 + RUNGS * HEAD.size <= plans_at <= len(sealed) else ():
        nbytes = HEAD.unpack_from(sealed, head)[-2]
        struct.pack_into("<I", sealed, head + HEAD.size - 4, zlib.crc32(sealed[at : at + nbytes]))
        at += nbytes
    struct.pack_into("<I", sealed, 12, zlib.crc32(sealed[16:plans_at]))
    return bytes(sealed)


def test_round_trip(tiny, create):
    blob = encode_program(tiny.program, tiny.digest)
    assert decode_program(blob) == written(tiny.program)
    assert decode_weights_digest(blob) == tiny.digest
    module = create(blob)
    assert bytes(module.get_function("blob")()) == blob
    info = json.loads(module.get_function("info")())
    assert info["ladder"][0]["streamed_bytes"] == sum(load.nbytes for load in tiny.program.rungs[0].loads)
    assert info["inputs"] == [{"name": "x", "shape": [256], "dtype": "float32"}]
    assert [layer["name"] for layer in info["layers"]] == [layer.name for layer in tiny.program.layers]


def test_deterministic(tiny, tmp_path):
    entries = lambda: builder.weight_entries(tiny.matrices, tiny.scale)  # noqa: E731
    first = write_weights(tmp_path / "a", entries(), model="tiny")
    second = write_weights(tmp_path / "b", entries(), model="tiny")
    assert first == second == tiny.digest
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == tiny.weights.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    assert encode_program(tiny.program, first) == encode_program(tiny.program, second)


def test_weights_are_safetensors(tiny):
    tensors = load_file(tiny.weights)
    packed = tensors["mv3.weight"]
    np.testing.assert_array_equal(packed.transpose(1, 0, 2).reshape(256, 256), tiny.matrices[3])
    np.testing.assert_array_equal(tensors["mul.scale"], tiny.scale)
    raw = tiny.weights.read_bytes()
    assert (8 + struct.unpack_from("<Q", raw)[0]) % PAGE == 0
    assert len(raw) == tiny.digest.file_nbytes


def test_weights_that_are_scalars_and_views(tmp_path):
    scalar, view = np.float32(3).reshape(()), np.arange(12, dtype="i8").reshape(3, 4).T
    digest = write_weights(tmp_path / "w", [("s", scalar), ("v", view)], data_nbytes=PAGE)
    tensors = load_file(tmp_path / "w")
    assert tensors["s"].shape == () and tensors["s"] == 3
    np.testing.assert_array_equal(tensors["v"], view)
    with pytest.raises(TypeError, match="must be a sequence"):
        write_weights(tmp_path / "g", iter([("s", scalar)]))
    assert digest.data_nbytes == PAGE and [c.offset for c in digest.checksums] == [0, 64]


@pytest.mark.parametrize(
    "entries",
    [
        [("a", np.zeros(4, "f4")), ("a", np.zeros(4, "f4"))],
        [("~pad.0", np.zeros(4, "f4"))],
        [("a", np.zeros(4, "f4"), 32)],
        [("a", np.zeros(64, "f4")), ("b", np.zeros(4, "f4"), 64)],
        [("a", np.zeros(4, "c8"))],
    ],
)
def test_impossible_weights_leave_no_file(tmp_path, entries):
    with pytest.raises(ValueError):
        write_weights(tmp_path / "w", entries)
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_byte_is_refused(tiny, create):
    blob = encode_program(tiny.program, tiny.digest)
    rng = random.Random(0)
    for at in [*range(32), *(rng.randrange(len(blob)) for _ in range(200))]:
        damaged = bytearray(blob)
        damaged[at] ^= 1 << rng.randrange(8)
        refuse(create, bytes(damaged), "program")
        with pytest.raises(ArtifactError):
            decode_program(bytes(damaged))


def test_cut_and_extended_programs_are_refused(tiny, create):
    blob = encode_program(tiny.program, tiny.digest)
    for wrong in (b"", blob[:10], blob[:-1], blob + b"\0"):
        refuse(create, wrong, "program")
        with pytest.raises(ArtifactError):
            decode_program(wrong)
    for wrong in (reseal(blob[:-9]), reseal(blob + b"\0" * 3)):
        refuse(create, wrong, "malformed")
        with pytest.raises(ArtifactError):
            decode_program(wrong)


@pytest.mark.parametrize(
    ("field", "change", "match"),
    [
        (6, 1, "holds something else than it is said to|has no room for"),
        (7, -1, "holds something else than it is said to"),
        (7, 1 << 31, "has no room for what it is said to hold"),
        (8, 1, "holds something else than it is said to|has no room for"),
        (9, 1, "holds something else than it is said to|has no room for"),
        (10, -1, "malformed"),
        (10, 1, "malformed"),
        (10, 1 << 62, "ends behind it"),
    ],
)
@pytest.mark.parametrize("rung", range(RUNGS))
def test_heads_that_say_something_else_than_plans_are_refused(tiny, create, rung, field, change, match):
    damaged = bytearray(encode_program(tiny.program, tiny.digest))
    at = heads_at(damaged)[rung]
    numbers = list(HEAD.unpack_from(damaged, at))
    numbers[field] += change
    HEAD.pack_into(damaged, at, *numbers)
    refuse(create, reseal(damaged), match)
    with pytest.raises(ArtifactError):
        decode_program(reseal(damaged))


@pytest.mark.parametrize("plans_at", [0, 31, 32, 100, -1, 1 << 40, (1 << 64) - 1])
def test_plans_elsewhere_are_refused(tiny, create, plans_at):
    damaged = bytearray(encode_program(tiny.program, tiny.digest))
    struct.pack_into("<Q", damaged, 24, len(damaged) - 8 if plans_at < 0 else plans_at)
    refuse(create, reseal(damaged), "malformed")
    with pytest.raises(ArtifactError):
        decode_program(reseal(damaged))


def test_another_version_is_refused(tiny, create):
    blob = bytearray(encode_program(tiny.program, tiny.digest))
    blob[8] = 1
    refuse(create, bytes(blob), "has format 1, this runtime reads formats 10 to 11")
    with pytest.raises(ArtifactError, match="has format 1"):
        decode_program(bytes(blob))


def test_wild_bytes_with_a_right_checksum_never_crash(tiny, create):
    """Whatever is sealed, the reader accepts it or refuses it; it does not read or reserve out of bounds."""
    blob = encode_program(tiny.program, tiny.digest)
    rng = random.Random(1)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(blob)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(32, len(blob))
            damaged[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", rng.randbytes(4), b"\0\0\0\x80"])
        try:
            create(reseal(damaged[: len(blob)]))
        except RuntimeError as error:
            assert error.__tvm_ffi_error__.kind == "ArtifactError"
            refused += 1
    assert refused > 300


BORDER = builder.RING + 3 * builder.SLICE_NBYTES + PAGE  # of the second rung: three places for slices, and a page


def with_rung(program, **changes):
    rung = dataclasses.replace(program.rungs[0], **changes)
    return dataclasses.replace(program, rungs=(rung, *program.rungs[1:]))


def with_first(items, **changes):
    return (dataclasses.replace(items[0], **changes), *items[1:])


@pytest.mark.parametrize(
    ("part", "changes", "match"),
    [
        ("loads", {"target": 1 << 40}, "load 0 lies outside the arena"),
        ("loads", {"source": 1 << 40}, "load 0 lies outside the weights file"),
        ("loads", {"nbytes": 0}, "load 0 brings nothing"),
        ("loads", {"nbytes": (1 << 44) - PAGE}, "load 0 lies outside"),
        ("loads", {"after": 1000}, "waits for a step that does not exist"),
        ("loads", {"ahead": False, "after": 0}, "load 1 cannot be read ahead"),
        ("steps", {"layer": 99}, "step 0 refers to no layer"),
        ("steps", {"need": 99}, "waits for a load that does not exist"),
        ("steps", {"count": 9}, "more blocks than layer"),
        ("steps", {"first": 7}, "more blocks than layer"),
        ("steps", {"weights_at": -1}, "weights of step 0 lie outside the arena"),
        ("steps", {"weights_at": 1 << 40}, "weights of step 0 lie outside the arena"),
        ("steps", {"weights_at": 2 * PAGE + 4}, "weights of step 0 lie outside the arena"),
    ],
)
def test_dangerous_plans_are_refused(tiny, create, part, changes, match):
    items = getattr(tiny.program.rungs[0], part)
    program = with_rung(tiny.program, **{part: with_first(items, **changes)})
    refuse(create, encode_program(program, tiny.digest), match)


@pytest.mark.parametrize(
    ("part", "index", "changes", "match"),
    [
        ("loads", 0, {"pinned": False}, "every inference writes to what stays"),
        ("loads", 0, {"target": builder.RING}, "no load that step 0 waits for brings its weights"),
        ("loads", 0, {"target": BORDER - PAGE}, "load 0 lies across the border"),
        ("loads", 2, {"pinned": True}, "no load that step 2 waits for brings its weights"),
        ("loads", 2, {"target": BORDER}, "every inference writes to what stays"),
        ("loads", 2, {"target": BORDER - PAGE}, "load 2 lies across the border"),
        ("steps", 0, {"weights_at": BORDER - 64}, "the weights of step 0 lie across the border"),
        ("steps", -1, {"scratch_at": BORDER}, "the scratch of step 13 lies outside the range of what inferences work in"),
        ("steps", -1, {"scratch_at": BORDER - 64}, "the scratch of step 13 lies outside the range of what inferences work in"),
        ("value_at", 1, BORDER, "value a lies outside the range of what inferences work in"),
        ("value_at", 1, BORDER - 64, "value a lies outside the range of what inferences work in"),
    ],
)
def test_nothing_lies_across_the_border_or_on_its_wrong_side(tiny, create, part, index, changes, match):
    """Of the second rung, which keeps two slices."""
    rung = tiny.program.rungs[1]
    assert rung.working == BORDER
    items = list(getattr(rung, part))
    items[index] = dataclasses.replace(items[index], **changes) if isinstance(changes, dict) else changes
    rung = dataclasses.replace(rung, **{part: tuple(items)})
    program = dataclasses.replace(tiny.program, rungs=(tiny.program.rungs[0], rung, tiny.program.rungs[2]))
    refuse(create, encode_program(program, tiny.digest), match)


def test_waits_that_never_end_are_refused(tiny, create):
    loads = tuple(dataclasses.replace(load, ahead=False, after=3) for load in tiny.program.rungs[0].loads)
    refuse(
        create,
        encode_program(with_rung(tiny.program, loads=loads), tiny.digest),
        "load 0 and step 0 .* wait for each other",
    )


def test_dangerous_programs_are_refused(tiny, create):
    def check(program, match):
        refuse(create, encode_program(program, tiny.digest), match)

    program = tiny.program
    check(with_rung(program, value_at=(0, 1024, 2048, 1 << 40)), "value out lies outside the arena")
    check(with_rung(program, value_at=(0, -1, 2048, 3072)), "value a lies outside the arena")
    check(with_rung(program, value_at=(0, 1024, 2048, -64)), "value out lies outside the arena")
    check(with_rung(program, arena=program.rungs[0].arena + PAGE), "does not fit")
    check(with_rung(program, working=program.rungs[0].arena + PAGE), "are no parts of it")
    check(with_rung(program, working=program.rungs[0].working + 64), "are no parts of it")
    check(dataclasses.replace(program, rungs=()), "no plan")
    *steps, last = program.rungs[0].steps
    check(with_rung(program, steps=(*steps, dataclasses.replace(last, count=2))), "which has no weights")
    check(dataclasses.replace(program, rungs=program.rungs[::-1]), "budgets do not ascend")
    check(dataclasses.replace(program, inputs=with_first(program.inputs, value=9)), "port x refers to no value")
    check(dataclasses.replace(program, values=with_first(program.values, nbytes=8)), "larger than its value|more than a value")


@pytest.mark.parametrize("changes", [{"scratch_nbytes": 512}, {"weights": Weights(0, 1, 64)}])
def test_layers_whose_parts_do_not_follow_each_other_cannot_be_said(tiny, changes):
    layer = dataclasses.replace(tiny.program.layers[-1], **changes)
    with pytest.raises(ValueError, match="of layer add do not follow each other"):
        encode_program(dataclasses.replace(tiny.program, layers=(*tiny.program.layers[:-1], layer)), tiny.digest)


@pytest.mark.parametrize("offset", [64, 4, 1 << 40, (1 << 64) - 64])
def test_parts_of_values_outside_them_are_refused(tiny, create, offset):
    program = tiny.program
    *layers, last = program.layers
    args = with_first(last.args, offset=offset)
    broken = dataclasses.replace(program, layers=(*layers, dataclasses.replace(last, args=args)))
    refuse(create, encode_program(broken, tiny.digest), "looks at more than a value")


def test_parts_of_values_and_values_without_a_place(tiny, create):
    """A value that no step uses needs no place; an argument may be the second half of a value."""
    program = tiny.program
    half = Value("half", 2048)
    *layers, mul, last = program.layers
    *read, result = mul.args
    mul = dataclasses.replace(mul, args=(*read, dataclasses.replace(result, value=len(program.values), offset=1024)))
    args = with_first(last.args, value=len(program.values), offset=1024)
    program = dataclasses.replace(
        program,
        values=(*program.values, half, Value("unused", 64)),
        layers=(*layers, mul, dataclasses.replace(last, args=args)),
        rungs=tuple(
            dataclasses.replace(builder.with_page(rung), value_at=(*rung.value_at, rung.working, -1))
            for rung in program.rungs
        ),
    )
    blob = encode_program(program, tiny.digest)
    create(blob)
    assert decode_program(blob) == written(program)


def test_unknown_kinds_of_operations_are_refused(tiny, create):
    blob = bytearray(encode_program(tiny.program, tiny.digest))
    first = written(tiny.program).rungs[0].tapes.operations[0]
    places = first.source // PAGE, first.nbytes // PAGE, first.to // PAGE
    at = blob.index(struct.pack("<BIIII", 0, 0, *places))
    blob[at] = 4
    refuse(create, reseal(blob), "does not know")
    with pytest.raises(ArtifactError, match="does not know"):
        decode_program(reseal(blob))


def test_loads_in_parts_of_pages_cannot_be_written(tiny):
    program = with_rung(tiny.program, loads=with_first(tiny.program.rungs[0].loads, target=64))
    with pytest.raises(ValueError, match="load 0 is not made of whole pages"):
        encode_program(program, tiny.digest)


@pytest.mark.parametrize(
    ("dtype", "bounds", "match"),
    [
        ("float32", ((0, 5),), "the bounds of an argument of layer add do not fit it"),
        ("int16", ((0, 5),), "do not fit it"),
        ("uint32", ((0, 5),), "do not fit it"),
        ("int32", ((0, 5), (0, 5), (0, 5)), "do not fit it"),
        ("int32", ((5, 5),), "empty bounds"),
        ("int64", ((-(2**63), 2**63 - 1), (-1, 1)), None),
    ],
)
def test_bounds_of_arguments(tiny, create, dtype, bounds, match):
    program = tiny.program
    *layers, last = program.layers
    args = with_first(last.args, type=TensorType((64,), dtype), bounds=bounds)
    program = dataclasses.replace(program, layers=(*layers, dataclasses.replace(last, args=args)))
    blob = encode_program(program, tiny.digest)
    assert decode_program(blob) == written(program)
    if match is None:
        create(blob)
    else:
        refuse(create, blob, match)
