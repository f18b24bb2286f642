"""Requests and responses of the Open Inference Protocol."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flexcomp.errors import InputError
from flexcomp.runtime import TensorInfo
from flexcomp.serving import protocol
from flexcomp.serving.json_numbers import Numbers, parsed, reading_nbytes
from flexcomp.serving.protocol import described, json_nbytes, most_nbytes, write_response

X = TensorInfo("x", (2, 3), "float32")
N = TensorInfo("n", (), "int64")
OUT = (TensorInfo("y", (2, 3), "float32"), TensorInfo("ok", (2,), "bool"))
VALUES = [[1, 2.5, 3], [4, 5, 6]]


def entry(port: TensorInfo, **more) -> dict:
    return {**described([port])[0], **more}


def body(*inputs: dict, **more) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def both(**more) -> bytes:
    return body(entry(X, data=VALUES), entry(N, data=[7]), **more)


def read_request(text, header, inputs, outputs):
    return protocol.read_request(text, json_nbytes(header, len(text)), inputs, outputs)


def test_numbers_may_be_nested_or_in_a_row():
    for data in (VALUES, VALUES[0] + VALUES[1]):
        request = read_request(body(entry(X, data=data), entry(N, data=[7])), None, (X, N), OUT)
        np.testing.assert_array_equal(request.inputs["x"], np.array(VALUES, "f4"))
        assert request.inputs["n"] == 7 and request.inputs["n"].shape == ()
    assert [(one.name, one.binary) for one in request.outputs] == [("y", False), ("ok", False)]


def test_binary_tensors_follow_the_json_in_the_order_of_the_inputs():
    x = np.arange(6, dtype="f4").reshape(2, 3)
    text = body(
        entry(N, parameters={"binary_data_size": 8}), entry(X, parameters={"binary_data_size": 24}),
        parameters={"binary_data_output": True, "timeout": 2500}, id="a",
    )  # fmt: skip
    request = read_request(text + np.int64(-5).tobytes() + x.tobytes(), str(len(text)), (X, N), OUT)
    np.testing.assert_array_equal(request.inputs["x"], x)
    assert request.inputs["n"] == -5 and request.id == "a" and request.timeout_s == pytest.approx(2.5e-3)
    result, length = write_response("net", request, {"y": x, "ok": np.array([True, False])})
    said = json.loads(result[:length])
    assert said["id"] == "a" and [one["parameters"]["binary_data_size"] for one in said["outputs"]] == [24, 2]
    assert result[length:] == x.tobytes() + b"\x01\x00"


def test_outputs_may_be_chosen_each_with_its_form():
    outputs = [{"name": "ok"}, {"name": "y", "parameters": {"binary_data": True}}]
    request = read_request(both(outputs=outputs), None, (X, N), OUT)
    result, length = write_response("net", request, {"y": np.zeros((2, 3), "f4"), "ok": np.array([True, False])})
    first, second = json.loads(result[:length])["outputs"]
    assert first == {"name": "ok", "datatype": "BOOL", "shape": [2], "data": [True, False]}
    assert second["parameters"] == {"binary_data_size": 24} and len(result) == length + 24


@pytest.mark.parametrize(
    ("text", "header", "says"),
    [
        (b"{", None, "the request is not JSON"),
        (b"[" * 100_000, None, "the request is not JSON"),
        (b"[]", None, "the request must be a JSON object"),
        (b"{}", None, "inputs must be a list"),
        (b'{"inputs": [{}]}', None, "each of inputs must have a name"),
        (body(entry(X, data=VALUES)), None, 'inputs must be "x", "n", not "x"'),
        (body(entry(X, data=VALUES), entry(X, data=VALUES)), None, '"x" is twice in inputs'),
        (both(id=3), None, "id must be a string"),
        (both(parameters=[]), None, "parameters must be a JSON object"),
        (both(parameters={"timeout": -1}), None, "timeout must be a number of microseconds"),
        (both(parameters={"binary_data_output": 1}), None, "binary_data_output must be true or false"),
        (both(outputs=[{"name": "z"}]), None, 'there is no output "z"; there is "y", "ok"'),
        (both(outputs=[{"name": "y", "parameters": {"classification": 3}}]), None, "classification is not supported"),
        (both(), "9" * 30, "is no part of a body of"),
        (both(), "-1", "is no part of a body of"),
        (both(), "²", "is no part of a body of"),
        (both() + b"abc", str(len(both())), "3 bytes behind the JSON belong to no input"),
        (body(entry(X, data=VALUES[:1]), entry(N, data=[7])), None, "its data are not nested like that"),
        (body(entry(X, data=[1, [2]]), entry(N, data=[7])), None, "its data are not nested like that"),
        (body(entry(X, data=[1.0] * 5), entry(N, data=[7])), None, "its data are not nested like that"),
        (body(entry(X, data=["1"] * 6), entry(N, data=[7])), None, "its data are not all int or float"),
        (body(entry(X, data=[True] * 6), entry(N, data=[7])), None, "its data are not all int or float"),
        (body(entry(X, data=[1e39] * 6), entry(N, data=[7])), None, "numbers beyond that type"),
        (b'{"inputs": [{"name": "x", "data": [NaN]}]}', None, "there is no number NaN"),
        (both(parameters={"a": 0}).replace(b'"a": 0', b'"a": 1e999'), None, "there is no number 1e999"),
        (body(entry(X, data=[0] * 6)).replace(b"[0,", b"[1e999,"), None, 'inputs must be "x", "n"'),
        (both().replace(b"2.5", b"1e999"), None, "numbers beyond that type"),
        (both().replace(b"2.5", b"02.5"), None, "its data are not JSON"),
        (both().replace(b"2.5", b"2."), None, "its data are not JSON"),
        (both().replace(b"2.5", b".5"), None, "its data are not JSON"),
        (both().replace(b"2.5", b"+2"), None, "its data are not JSON"),
        (both().replace(b"2.5", b"2,"), None, "its data are not JSON"),
        (both().replace(b"2.5", b"2 5"), None, "its data are not JSON"),
        (both().replace(b"2.5", b"null"), None, "its data are not all int or float"),
        (body({**entry(X, data=VALUES), "shape": [2.0, 3]}, entry(N, data=[7])), None, r'not "FP32"\[2.0, 3\]'),
        (body({**entry(X, data=VALUES), "shape": [2, True]}, entry(N, data=[7])), None, "must be FP32"),
        (body(entry(X, parameters={"binary_data_size": 24.0}), entry(N, data=[7])), None, "of 24 bytes, not 24.0"),
        (body(entry(X, data=VALUES), entry(N, data=[2**63])), None, "numbers beyond that type"),
        (body(entry(X, data=VALUES), entry(N, data=[1.5])), None, "its data are not all int"),
        (body(entry(X), entry(N, data=[7])), None, "as a list of 6 numbers"),
        (body({**entry(X, data=VALUES), "shape": [3, 2]}, entry(N, data=[7])), None, r'must be FP32\[2, 3\], not "FP32"\[3, 2\]'),
        (body({**entry(X, data=VALUES), "datatype": "FP64"}, entry(N, data=[7])), None, 'not "FP64"'),
        (body(entry(X, parameters={"binary_data_size": 20}), entry(N, data=[7])), None, "of 24 bytes, not 20"),
        (body(entry(X, parameters={"binary_data_size": 24}), entry(N, data=[7])), None, "but only 0 are left"),
        (body(entry(X, data=VALUES, parameters={"binary_data_size": 24}), entry(N, data=[7])), None, "has both data and"),
        (body(entry(X, parameters={"shared_memory_region": "r"}), entry(N, data=[7])), None, "shared memory is not supported"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text, header, says):
    with pytest.raises(InputError, match=says):
        read_request(text, header, (X, N), OUT)


def test_types_that_json_has_no_numbers_for():
    half = TensorInfo("h", (2,), "float16")
    with pytest.raises(InputError, match="send binary data"):
        read_request(body(entry(half, data=[1, 2])), None, (half,), (half,))
    text = body(entry(half, parameters={"binary_data_size": 4}))
    request = read_request(text + np.array([1, 2], "f2").tobytes(), str(len(text)), (half,), (half,))
    with pytest.raises(InputError, match="ask for binary data"):
        write_response("net", request, {"h": request.inputs["h"]})
    request = read_request(both(), None, (X, N), OUT)
    with pytest.raises(InputError, match='output "y" has values that JSON has no numbers for'):
        write_response("net", request, {"y": np.full((2, 3), np.inf, "f4"), "ok": np.zeros(2, bool)})
    flag = TensorInfo("b", (2,), "bool")
    text = body(entry(flag, parameters={"binary_data_size": 2}))
    with pytest.raises(InputError, match="neither 0 nor 1"):
        read_request(text + b"\x01\x02", str(len(text)), (flag,), (flag,))


DTYPES = ["float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]


@settings(max_examples=100)
@given(st.data(), st.booleans(), st.booleans())
def test_every_tensor_comes_back_as_it_was(data, binary, binary_output):
    dtype = data.draw(st.sampled_from(DTYPES))
    elements = {"allow_nan": False, "allow_infinity": False} if dtype.startswith("f") else None
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0), elements=elements))
    port = TensorInfo("t", array.shape, dtype)
    numbers = array.tolist() if array.ndim else [array.item()]
    sent = {"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": numbers}
    text = body(entry(port, **sent), parameters={"binary_data_output": binary_output})
    whole = text + (array.tobytes() if binary else b"")
    assert len(whole) <= most_nbytes([port])
    request = read_request(whole, str(len(text)) if binary else None, (port,), (port,))
    result, length = write_response("net", request, {"t": request.inputs["t"]})
    (given_back,) = json.loads(result[:length])["outputs"]
    assert given_back["shape"] == list(array.shape)
    back = np.frombuffer(result[length:], dtype) if binary_output else np.array(given_back["data"], dtype)
    np.testing.assert_array_equal(back.reshape(array.shape), array)


NUMBERS = st.integers() | st.integers(-300, 300) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
TEXTS = NUMBERS.map(json.dumps) | st.sampled_from(
    ["-0", "-0.0", "1e400", "-1e400", "1e-400", "-1e-400", "1e39", "1e-46", "0e999999999999999999999", "1E+2", "0.1e1",
     "1e-99999999999999999999", "0." + "0" * 400 + "1e500", "1" + "0" * 400 + "e-500", "1" + "0" * 400, "255", "256", "-128",
     "-129", str(2**64 - 1), str(2**64)]
)  # fmt: skip


@settings(max_examples=300)
@given(TEXTS, st.sampled_from(DTYPES))
def test_numbers_are_what_another_reader_finds(text, dtype):
    """Python's own, and NumPy's conversion."""
    value, kind = json.loads(text), np.dtype(dtype).kind
    allowed = {"b": bool, "i": int, "u": int, "f": (int, float)}[kind]
    expected = None
    if isinstance(value, allowed) and isinstance(value, bool) == (kind == "b"):
        with suppress(OverflowError, FloatingPointError), np.errstate(over="raise"):
            expected = np.array([value], dtype)
    if expected is not None and kind == "f" and not np.isfinite(expected).all():
        expected = None
    if expected is None:
        with pytest.raises(InputError, match=r"beyond that type|are not all"):
            Numbers(memoryview(f"[{text}]".encode())).read((1,), np.dtype(dtype))
    else:
        found = Numbers(memoryview(f"[ {text}\n]".encode())).read((1,), np.dtype(dtype))
        np.testing.assert_array_equal(found, expected, strict=True)  # but for -0, which Python takes for an integer


def test_data_is_found_however_its_key_is_written_and_nothing_else_is_taken_for_it():
    for change in (
        lambda text: text.replace(b'"data"', b'"d\\u0061ta"'),
        lambda text: text.replace(b'"data": ', b'"data"\n:\t'),
        lambda text: text.replace(b'"inputs"', b'"data": [1, 2], "id": "\\"data\\": [3]", "inputs"'),
        lambda text: text.replace(b'"data": [[', b'"data": [9], "data": [ ['),
        lambda text: text.replace(b'"shape"', b'"data": "data", "shape"'),
    ):
        request = read_request(change(both()), None, (X, N), OUT)
        np.testing.assert_array_equal(request.inputs["x"], np.array(VALUES, "f4"))


def test_an_image_takes_its_own_size_besides_the_text():
    import tracemalloc

    port = TensorInfo("x", (3, 200, 200), "float32")
    image = np.random.default_rng(1).standard_normal(port.shape).astype("f4")
    text = bytearray(body(entry(port, data=image.tolist())))
    counted = protocol.reading_nbytes(text, (port,))
    tracemalloc.start()
    try:
        request = read_request(text, None, (port,), OUT)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(request.inputs["x"], image)
    assert taken <= counted + 4096 and counted < image.nbytes + 4096


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["inputs", "outputs", "parameters", "name", "data", "shape", "datatype", "x", "n"]), inner, max_size=5),
    max_leaves=20).map(lambda value: json.dumps(value).encode()), st.none() | st.text(max_size=4))  # fmt: skip
def test_no_request_does_any_harm(text, header):
    with suppress(InputError):
        read_request(text, header, (X, N), OUT)


@pytest.mark.parametrize(
    "text",
    [
        *(f"[{one * 3000}0]" for one in ("1,", "1.5,", "[],", "[1],", "{},", '{"a":1},', '{"a":{"b":{}}},', '"",', "true,")),
        "[" + "12345678901234567890," * 500 + "0]",
        "{" + ",".join(f'"{index}":1' for index in range(3000)) + "}",
        "[" + ",".join(f'{{"{index}":1}}' for index in range(3000)) + "]",
        '["' + "a" * 50_000 + '😀"]',
        "[" * 500 + "]" * 500,
    ],
    ids=range(14),
)
def test_reading_json_takes_no_more_than_is_counted(text):
    import tracemalloc

    data = text.encode()
    tracemalloc.start()
    try:
        with suppress(InputError):
            parsed(data)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    counted = reading_nbytes(data)
    assert taken <= counted + 4096 and (counted <= 8 * taken or text.startswith(("[true", '["",')))
