"""Storage that fails under models while they are asked: whose request it was is told, all others go on."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.serving.servers import Server

HERE = Path(__file__).parent
BUDGET = "2MB"  # less than the weights of one network: every inference reads
PATIENCE_S = 60


class Asking:
    """Threads that ask the models all the time."""

    def __init__(self, server: Server, asked: dict, *names: str) -> None:
        self.statuses: dict[str, Counter] = {name: Counter() for name in names}
        self.errors: dict[str, set[str]] = {name: set() for name in names}
        self._ended = False
        self._threads = [threading.Thread(target=self._ask, args=(server.url, name, asked)) for name in names]
        for thread in self._threads:
            thread.start()

    def _ask(self, url: str, name: str, asked: dict) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            while not self._ended:
                response = client.post(f"/v2/models/{name}/infer", json=asked)
                if response.status_code != 200:
                    self.errors[name].add(response.json()["error"])
                self.statuses[name][response.status_code] += 1

    def until(self, name: str, status: int, more: int = 3) -> None:
        """Wait until a model was answered so that often from now on."""
        wanted = self.statuses[name][status] + more
        deadline = time.monotonic() + PATIENCE_S
        while self.statuses[name][status] < wanted:
            assert time.monotonic() < deadline, self.statuses
            time.sleep(0.01)

    def end(self) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()


@contextmanager
def asking(server: Server, asked: dict, *names: str) -> Iterator[Asking]:
    threads = Asking(server, asked, *names)
    try:
        yield threads
    finally:
        threads.end()


@pytest.fixture
def folder(tmp_path, first, second):
    for name, network in (("one", first), ("two", second)):
        for file in (network.library, network.weights):
            shutil.copy(file, tmp_path / f"{name}{file.suffix}")
    return tmp_path.resolve()


@pytest.fixture(scope="session")
def failing_disk(tmp_path_factory):
    """A library to preload."""
    built = tmp_path_factory.mktemp("failing") / "failing_disk.so"
    compiler = [*(shlex.split(os.environ.get("CXX", "")) or ["g++"]), "-std=c++20", "-O1", "-shared", "-fPIC"]
    subprocess.run([*compiler, HERE / "failing_disk.cc", "-o", built, "-ldl"], check=True)
    return built


def test_a_disk_that_fails_and_works_again(folder, failing_disk, asked):
    switch = folder / "failing"
    preloaded = {"LD_PRELOAD": str(failing_disk), "FAILING_DISK": str(switch)}
    with (
        Server(folder / "one.so", folder / "two.so", "--budget", BUDGET, env=preloaded) as server,
        asking(server, asked, "one", "two") as clients,
    ):
        for name in ("one", "two"):
            clients.until(name, 200)
        for _ in range(2):
            (folder / "next").write_text(str(folder / "one.weights"))
            os.replace(folder / "next", switch)
            clients.until("one", 500)
            clients.until("two", 200)
            assert server.client.get("/v2/models/one/ready").status_code == 200
            switch.unlink()
            clients.until("one", 200)
        clients.end()
        assert set(clients.statuses["one"]) == {200, 500} and set(clients.statuses["two"]) == {200}
        assert all("one.weights" in error for error in clients.errors["one"])
        failed = server.metric("flexcomp_requests_total", model="one", outcome="failed")
        assert failed == clients.statuses["one"][500]


@pytest.mark.parametrize("damage", ["cut", "written"])
def test_weights_that_are_damaged_in_flight(folder, first, asked, damage):
    with (
        Server(folder / "one.so", folder / "two.so", "--budget", BUDGET) as server,
        asking(server, asked, "one", "two") as clients,
    ):
        for name in ("one", "two"):
            clients.until(name, 200)
        with open(folder / "one.weights", "r+b") as file:
            if damage == "cut":
                file.truncate(8192)
            else:
                file.seek(8192)
                file.write(b"damage")
        clients.until("one", 500)
        (folder / "two.weights").unlink()  # whoever has it open reads on
        clients.until("two", 200)
        for file in (first.weights, first.library):
            shutil.copy(file, folder / "next")
            os.replace(folder / "next", folder / f"one{file.suffix}")
        assert server.client.post("/v2/repository/models/one/load").status_code == 200
        clients.until("one", 200)
        clients.end()
        assert set(clients.statuses["two"]) == {200} and set(clients.statuses["one"]) <= {200, 500, 404}
