"""The time that a request over HTTP takes more than `Session.run` of the same inference, all in turns.

In each round every way runs once, in an order that changes:

session   `Session.run`, in the client's process
floor     a server that answers at once with the bytes of an answer: the time of the client and the system
http      `flexcomp serve`, by the standard library's client, with a body made before
triton    `flexcomp serve`, by Triton's client, which writes its request anew each time
"""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.serve.served import HEADER, Client

_READ_NBYTES = 1 << 20


@dataclass(frozen=True)
class Way:
    """One way to an answer, which is timed, and its check against the right one, which is not."""

    ask: Callable[[], Any]
    check: Callable[[Any], None]


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a process that takes requests with a Content-Length, and answers each with `answer` at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = multiprocessing.get_context("fork").Process(target=_answer, args=(listening, answer), daemon=True)
        process.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            process.terminate()
            process.join()


def _answer(listening: socket.socket, answer: bytes) -> None:
    buffer = memoryview(bytearray(_READ_NBYTES))
    while True:
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while nbytes := connection.recv_into(buffer):
                head, ended, body = bytes(buffer[:nbytes]).partition(b"\r\n\r\n")
                if not ended:
                    raise ValueError("the head of a request came in parts")
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
                left = int(fields[b"content-length"]) - len(body)
                while left > 0:
                    left -= connection.recv_into(buffer)
                connection.sendall(answer)


def plain_way(url: str, client: Client) -> Way:
    """Requests by the standard library's client."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))

    def ask() -> tuple[int, bytes]:
        connection.request("POST", client.path, client.body, client.headers)
        response = connection.getresponse()
        return int(response.headers[HEADER]), response.read()

    return Way(ask, lambda answer: client.check(*answer))


def triton_way(url: str, client: Client) -> Way:
    """Requests by Triton's client, from arrays to arrays."""
    import tritonclient.http as triton
    from tritonclient.utils import np_to_triton_dtype

    connection = triton.InferenceServerClient(url.removeprefix("http://"))
    model = client.path.split("/")[3]
    def ask() -> dict[str, np.ndarray]:
        inputs = []
        for name, array in client.inputs.items():
            inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        outputs = [triton.InferRequestedOutput(name) for name in client.right]
        result = connection.infer(model, inputs, outputs=outputs)
        return {name: result.as_numpy(name) for name in client.right}

    def check(given: dict[str, np.ndarray]) -> None:
        for name, right in client.right.items():
            np.testing.assert_allclose(given[name], right, rtol=1e-3, atol=1e-3 * np.abs(right).max())

    return Way(ask, check)


def raw_answer(url: str, client: Client) -> bytes:
    """All bytes of one answer, as in the socket."""
    host, _, port = url.removeprefix("http://").partition(":")
    fields = {"Host": url.removeprefix("http://"), "Content-Length": len(client.body), "Connection": "close", **client.headers}
    head = "".join([f"POST {client.path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n"])
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + client.body)
        answer = b"".join(iter(lambda: connection.recv(_READ_NBYTES), b""))
    return answer.replace(b"connection: close\r\n", b"")


def in_turns(ways: dict[str, Way], rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of each way in each round, without a first tenth."""
    names = list(ways)
    took: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + rounds // 10):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            answer = ways[name].ask()
            took[name].append(1e3 * (time.perf_counter() - began))
            ways[name].check(answer)
    return {name: np.array(ms[rounds // 10 :]) for name, ms in took.items()}


def latencies(url: str, client: Client, rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of every way in each round."""
    with answering(raw_answer(url, client)) as floor:
        ways = {
            "session": Way(lambda: client.session.run(client.inputs), lambda answer: None), "floor": plain_way(floor, client),
            "http": plain_way(url, client), "triton": triton_way(url, client),
        }
        return in_turns(ways, rounds)
