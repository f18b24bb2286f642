"""Clients that nobody knows yet, and many of them: what they cost, and that others are answered meanwhile."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from flexcomp.serving import connection as connection_file
from flexcomp.serving.connections import MOST_HEADS_NBYTES, MOST_UNSENT_NBYTES, SPARE, Connections, affordable
from flexcomp.serving.logs import Log
from tests.serving import crowd
from tests.serving.servers import Server, answer_on, raw_request, status_of

HEALTH = raw_request("/v2/health/live", b"", method="GET")


@pytest.fixture(scope="module")
def guarded(first, tmp_path_factory):
    token = tmp_path_factory.mktemp("guarded") / "token"
    token.write_text(crowd.TOKEN)
    with Server(first.library, "--budget", "20MB", "--token-file", token, token=crowd.TOKEN, is_forked=False) as server:
        yield server


def test_heads_that_are_never_complete_and_connections_that_ask_nothing(guarded):
    """Without a bound for all together they take 60 MB."""
    seen = crowd.crowd(guarded, heads=700, idle=300)
    assert max(seen.grew_nbytes, seen.left_nbytes) < crowd.MOST_NBYTES
    assert seen.slowest_s < 5  # on a machine that has other work
    assert guarded.client.get("/v2").status_code == 200


def test_clients_that_do_not_read_their_answers(guarded):
    """Without a bound for all together they take 11 MB."""
    seen = crowd.unread(guarded, readers=600)
    assert max(seen.grew_nbytes, seen.left_nbytes) < crowd.MOST_NBYTES
    assert seen.slowest_s < 5
    assert guarded.client.get("/v2").status_code == 200


def test_clients_that_all_ask_at_once(guarded):
    """With an answer for each they take 16 MB before the first of them is closed."""
    assert crowd.burst(guarded, readers=450) < crowd.MOST_NBYTES


def test_a_process_with_few_files_serves_on(first):
    """Connections are fewer then, and accepting one more is not tried all the time."""
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); "
    few += "import sys; from flexcomp.cli import main; sys.argv[0] = 'flexcomp'; main()"
    with Server(first.library, "--budget", "20MB", program=["-c", few]) as server, ExitStack() as held:
        for _ in range(400):
            with suppress(ConnectionError):
                held.enter_context(server.connection())
        assert crowd.healthy_after_s(server) < 5
        stat = Path(f"/proc/{crowd.processes(server)[-1]}/stat")

        def busy() -> int:
            return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))

        before = busy()
        time.sleep(1)
        assert busy() - before < 30  # hundredths of a second


# ------------------------------------------------------------------------------------- the bounds, one by one


class Silent:
    """A connection without a client."""

    def __init__(self) -> None:
        self.wait, self.head_nbytes, self.aborted, self.ended = None, 0, False, False

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted = True


def in_a_loop(work) -> None:
    async def run() -> None:
        work()

    asyncio.run(run())


def test_the_one_that_has_waited_for_longest_is_closed():
    def work() -> None:
        connections = Connections(most=3)
        first, second, third, fourth, fifth = (Silent() for _ in range(5))
        for one in (first, second, third):
            connections.came(one)
        connections.works(first)  # a request is in progress
        connections.waits(second, connection_file.Wait.HEAD)
        connections.came(fourth)
        assert [one.aborted for one in (first, second, third)] == [False, False, True] and len(connections) == 3
        connections.came(fifth)
        assert second.aborted and not fourth.aborted and not connections.crowded

    in_a_loop(work)


def test_where_all_are_at_work_a_few_more_are_let_in():
    def work() -> None:
        connections = Connections(most=3)
        there = [Silent() for _ in range(3 + SPARE + 1)]
        for one in there:
            connections.came(one)
            if not one.aborted:
                connections.works(one)
        assert [one.aborted for one in there] == [False] * (3 + SPARE) + [True] and connections.crowded

    in_a_loop(work)


def test_heads_have_a_bound_together():
    def work() -> None:
        connections = Connections()
        there = [Silent() for _ in range(4)]
        for one in there:
            connections.came(one)
            connections.waits(one, connection_file.Wait.HEAD)
            connections.hold_head(one, MOST_HEADS_NBYTES // 3)
        assert [one.aborted for one in there] == [True, False, False, False]
        connections.works(there[1])
        connections.hold_head(there[3], MOST_HEADS_NBYTES // 3)  # the second is in progress
        assert [one.aborted for one in there] == [True, False, True, False]

    in_a_loop(work)


def test_answers_that_are_not_taken_have_a_bound_together():
    def work() -> None:
        connections = Connections()
        there = [Silent() for _ in range(4)]
        for one in there:
            connections.came(one)
            connections.waits(one, connection_file.Wait.TAKEN)
        connections.waits(there[0], connection_file.Wait.REQUEST)  # which took its answer
        for one in there[1:]:
            connections.hold_unsent(one, MOST_UNSENT_NBYTES // 2)
        assert [one.aborted for one in there] == [False, True, False, False]
        connections.works(there[2])
        connections.hold_unsent(there[0], MOST_UNSENT_NBYTES // 2)
        assert [one.aborted for one in there] == [False, True, False, False]

    in_a_loop(work)


def test_where_all_others_are_at_work_the_one_that_takes_no_answer_is_closed():
    def work() -> None:
        connections = Connections(most=2)
        first, second, third, fourth = (Silent() for _ in range(4))
        connections.came(first)
        connections.works(first)
        connections.came(second)
        connections.waits(second, connection_file.Wait.TAKEN)
        connections.came(third)
        assert second.aborted
        connections.waits(third, connection_file.Wait.TAKEN)
        connections.works(first)
        connections.waits(first, connection_file.Wait.REQUEST)
        connections.came(fourth)
        assert first.aborted and not third.aborted

    in_a_loop(work)


def test_each_wait_has_a_time_of_its_own():
    async def work() -> None:
        connections = Connections(idle_s=0.4, head_s=0.1, taken_s=60)
        there = {wait: Silent() for wait in connection_file.Wait}
        for wait, one in there.items():
            connections.came(one)
            connections.waits(one, wait)
        began = time.monotonic()
        while not there[connection_file.Wait.HEAD].aborted:
            await asyncio.sleep(0.01)
        assert time.monotonic() - began > 0.1 and not there[connection_file.Wait.REQUEST].aborted
        while not there[connection_file.Wait.REQUEST].aborted:
            await asyncio.sleep(0.01)
        assert time.monotonic() - began > 0.4 and not there[connection_file.Wait.TAKEN].aborted

    asyncio.run(asyncio.wait_for(work(), 30))


def test_files_of_the_process_are_reckoned_with(monkeypatch):
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: limits.append(both))
    for soft, hard, connections, raised in (
        (1024, 4096, 512, 1696),
        (1024, 1024, 512, 1024),
        (256, 300, 140, 300),
        (100, 100, 8, 100),
        (1 << 20, 1 << 20, 512, None),
    ):
        limits.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda kind, both=(soft, hard): both)
        assert affordable(1024) == connections
        assert limits == ([] if raised is None else [(raised, hard)])


# --------------------------------------------------------------------------- through a connection, with short times


@pytest.fixture(scope="module")
def patient():
    """The address of a server that gives a head half a second, and waits for all else for long."""
    listening = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()

    async def application(scope, receive, send) -> None:
        if scope["path"] == "/refused":
            text = b"no"
        else:
            text, more = b"", True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                text += message["body"]
                more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})

    async def serve() -> None:
        shared = connection_file.Server(application, Connections(head_s=0.5), Log())
        await asyncio.get_running_loop().create_server(shared.connect, sock=listening)
        while not ends.is_set():
            await asyncio.sleep(0.01)
        await shared.connections.end(10)

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    yield listening.getsockname()
    ends.set()
    thread.join(30)


def test_a_head_byte_by_byte_is_not_waited_for_but_a_body_is(patient):
    with socket.create_connection(patient, timeout=20) as connection:
        with pytest.raises(ConnectionError):
            for byte in HEALTH * 100:
                connection.sendall(bytes([byte]))
                time.sleep(0.03)
    with socket.create_connection(patient, timeout=20) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\n")
        for byte in b"abcdefgh":
            time.sleep(0.15)
            connection.sendall(bytes([byte]))
        assert answer_on(connection).endswith(b"abcdefgh")


def test_a_body_that_nobody_wants_is_not_waited_for_either(patient):
    with socket.create_connection(patient, timeout=20) as connection:
        connection.sendall(b"POST /refused HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
        assert answer_on(connection).endswith(b"no")
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"a")
                time.sleep(0.03)


def test_an_idle_connection_is_kept_for_longer_than_a_head_may_take(patient):
    with socket.create_connection(patient, timeout=20) as connection:
        for _ in range(2):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert status_of(answer_on(connection)) == 200
            time.sleep(1)
