"""Clients of a language model while the budget changes at random: wrong replies, faults, and memory over the budget in force.

    python -m benchmarks.lab.chats chat/model.so [other.so] --budget 24MB --minutes 10 --clients 8

OpenAI's client asks by chats and completions, whole and as streams, some of which it leaves. Replies are greedy, and compared
with those of the decoder alone. Other libraries answer by the Open Inference Protocol meanwhile, under the same total. The
server's resident memory is that over the idle server's, and the budget in force is the largest of the last seconds: a watch takes
up to two to follow a larger one. The exit status is 1 for a wrong reply, a fault, or more than 12 MiB over the budget.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai

import flexcomp
from benchmarks.results import Results, Table, json_option
from benchmarks.serve.served import served
from flexcomp.generation import Text
from flexcomp.runtime import parse_budget, read_summary

COLUMNS = {
    "clients": "d", "replies": ",d", "left": ",d", "inferences of others": ",d", "wrong": "d", "faults": "d", "changes": ",d",
    "over the budget, MiB": "+.2f",
}  # fmt: skip
MOST_OVER_NBYTES = 12 << 20
_FOLLOWED_S = 3.0  # after which a budget is in force
_LEFT = 0.1  # of the streams
_WORDS = "the cat sat on a mat and ate of it"


class Limit:
    """A budget in a file, as of a control group, that changes at random."""

    def __init__(self, folder: Path, least: int, most: int, room: int, seed: int) -> None:
        self.changes = 0
        self._file, self._least, self._most, self._room = folder / "memory.max", least, most, room
        self._random = random.Random(seed)
        self._set: list[tuple[float, int]] = []
        self.set(most)

    def set(self, nbytes: int) -> None:
        """From now on."""
        new = self._file.with_name("new")
        new.write_text(str(nbytes))
        new.replace(self._file)  # a file that is being written is empty for a moment
        self._set.append((time.monotonic(), nbytes))
        self.changes += 1

    def change_until(self, done: threading.Event, rarely_s: float) -> None:
        """Now and then."""
        while not done.wait(self._random.uniform(0.2, rarely_s)):
            self.set(self._random.randint(self._least, self._most))

    @property
    def allowed(self) -> int:
        """Bytes that the server may hold at the moment, requests included."""
        before = time.monotonic() - _FOLLOWED_S
        last = max((at for at, _ in self._set if at <= before), default=0.0)
        return min(max(nbytes for at, nbytes in self._set if at >= last), self._most) + self._room


def alone(library: Path, prompts: Sequence[str], count: int) -> dict[tuple[bool, str], str]:
    """The replies to all prompts, as chats and as completions."""
    found = {}
    with flexcomp.load(library) as session:
        text = Text(session, library.resolve().parent)
        for prompt in prompts:
            found[True, prompt] = "".join(text.chat([{"role": "user", "content": prompt}], count))
            found[False, prompt] = "".join(text.reply(prompt, count))
        text.tokenizer.close()
    return found


def ask(client: openai.OpenAI, model: str, prompt: str, count: int, chosen: random.Random, wanted: dict) -> str:
    """One request; "replies", "left" or "wrong"."""
    is_chat, is_stream, leaves = chosen.random() < 0.5, chosen.random() < 0.7, chosen.random() < _LEFT
    options = {"model": model, "max_tokens": count, "temperature": 0, "stream": is_stream}
    if is_chat:
        answer = client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **options)
    else:
        answer = client.completions.create(prompt=prompt, **options)
    if not is_stream:
        choice = answer.choices[0]
        found = choice.message.content if is_chat else choice.text
    else:
        pieces = []
        for part in answer:
            (choice,) = part.choices
            pieces.append((choice.delta.content or "") if is_chat else choice.text)
            if leaves and len(pieces) == 5:
                answer.close()
                return "left" if wanted[is_chat, prompt].startswith("".join(pieces)) else "wrong"
        found = "".join(pieces)
    return "replies" if found == wanted[is_chat, prompt] else "wrong"


def inferences(url: str, name: str, done: threading.Event) -> int:
    """Of another model, one after the other; their number."""
    count = 0
    with httpx.Client(base_url=url, timeout=60) as client:
        ports = client.get(f"/v2/models/{name}").json()["inputs"]
        inputs = []
        for port in ports:
            shape = [max(extent, 1) for extent in port["shape"]]
            inputs.append({"name": port["name"], "datatype": port["datatype"], "shape": shape, "data": [0] * math.prod(shape)})
        while not done.wait(0.05):
            client.post(f"/v2/models/{name}/infer", json={"inputs": inputs}).raise_for_status()
            count += 1
    return count


def run(
    library: Path, others: Sequence[Path], budget: str, clients: int, seconds: float, count: int = 60, seed: int = 0,
    enough: Callable[[Counter], bool] = lambda counts: True,
) -> dict[str, float]:  # fmt: skip
    """The figures, by column, after so many seconds or as soon as they are `enough`, whichever is later."""
    chosen = random.Random(seed)
    prompts = [" ".join(chosen.choices(_WORDS.split(), k=chosen.randint(1, 40))) for _ in range(2 * clients)]
    wanted = alone(library, prompts, count)
    total = parse_budget(budget).nbytes
    room = min(total // 8, 32 << 20)
    names = ["chat", *(path.stem for path in others)]
    summaries = [read_summary(path) for path in (library, *others)]
    least = sum(one["min_budget_bytes"] for one in summaries) + (1 << 20)
    counts: Counter = Counter()
    worst, done = -(10**12), threading.Event()
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        limit = Limit(folder, least, total - room, room, seed)
        log, faults = folder / "log", []
        options = ["--watch", str(folder), "--log", "json", "--request-memory", str(room)]
        url, serving = held.enter_context(served([f"chat={library}", *others], budget, *options, log=log))
        client = held.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
        idle = serving.memory_info().rss

        def asks(index: int) -> None:
            own = random.Random(seed * 1000 + index)
            while not done.is_set():
                try:
                    counts[ask(client, names[0], own.choice(prompts), count, own, wanted)] += 1
                except openai.OpenAIError as error:
                    faults.append(repr(error))

        threading.Thread(target=limit.change_until, args=(done, min(6.0, seconds / 8)), daemon=True).start()
        with ThreadPoolExecutor(clients + len(others)) as threads:
            asking = [threads.submit(asks, index) for index in range(clients)]
            inferring = [threads.submit(inferences, url, name, done) for name in names[1:]]
            until = time.monotonic() + seconds
            while (time.monotonic() < until or not enough(counts)) and serving.is_running():
                worst = max(worst, serving.memory_info().rss - idle - limit.allowed)
                time.sleep(0.005)
            done.set()
            for one in asking:
                one.result()
            other = sum(one.result() for one in inferring)
        said = log.read_text().partition('"serving"')[2].splitlines()[1:]
        faults += [line for line in said if not line.startswith("{") or json.loads(line).get("level") == "error"]
    for line in faults[:5]:
        print(line.strip(), file=sys.stderr)
    row = clients, counts["replies"], counts["left"], other, counts["wrong"], len(faults), limit.changes, worst / 2**20
    return dict(zip(COLUMNS, row, strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", type=Path, help="a decoder's, with its tokenizer, and others")
    parser.add_argument("--budget", default="24MB")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=60, help="of a reply")
    parser.add_argument("--seed", type=int, default=0)
    json_option(parser, "chats")
    given = parser.parse_args(arguments)
    written, table = Results.begin("benchmarks.lab.chats"), Table(COLUMNS)
    library, *others = given.libraries
    found = run(library, others, given.budget, given.clients, 60 * given.minutes, given.tokens, given.seed)
    table.add(*found.values())
    written.write(given.json, [table])
    return int(found["wrong"] > 0 or found["faults"] > 0 or found["over the budget, MiB"] * 2**20 > MOST_OVER_NBYTES)


if __name__ == "__main__":
    sys.exit(main())
