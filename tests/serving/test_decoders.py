"""Decoders of a repository: loaded and unloaded while a server runs, under the budget of all models."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import dataclass

import pytest

import flexcomp
from flexcomp.errors import BudgetError, InputError
from flexcomp.generation import Text, TextReply
from flexcomp.serving import Metrics, Models, Room, Service, Whole, libraries_in, make_app, needs_of, pool_part
from flexcomp.serving.answers import Refusal
from flexcomp.serving.logs import Log
from flexcomp.units import Units, enough, human_bytes
from tests.cli import calls
from tests.serving.in_process import ask
from tests.serving.servers import Server

CHAT = [{"role": "user", "content": "the cat"}]
GREEDY = {"model": "chat", "temperature": 0}


@pytest.fixture
def repository(decoder_library, first, tmp_path):
    """`chat`, which has a folder of its own, `linked`, a link to the same library, and the network `plain`."""
    folder = tmp_path / "models"
    shutil.copytree(decoder_library.parent, folder / "chat")
    for suffix in (".so", ".weights"):
        (folder / "chat" / decoder_library.with_suffix(suffix).name).rename(folder / "chat" / f"model{suffix}")
    (folder / "linked.so").symlink_to(decoder_library)
    (folder / "plain.so").symlink_to(first.library)
    return folder


@pytest.fixture(scope="module")
def reply(decoder_library):
    with flexcomp.load(decoder_library, threads=1) as session:
        return "".join(Text(session, decoder_library.parent).chat(CHAT, 20))


def change(server, name, event) -> tuple[int, str]:
    response = server.client.post(f"/v2/repository/models/{name}/{event}")
    return response.status_code, response.json().get("error", "")


def test_they_come_and_go(repository, asked, reply):
    import openai

    with (
        Server("--repository", repository, "--budget", "24MB", "--request-memory", "2MB", "--threads", "1") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):

        def replied(name="chat") -> str:
            found = client.chat.completions.create(model=name, messages=CHAT, max_tokens=20, temperature=0)
            return found.choices[0].message.content

        def budgets() -> list[float | None]:
            models = "chat", "linked"
            decoders = [server.metric("flexcomp_decoder_budget_bytes", model=name) for name in models]
            return [server.metric("flexcomp_budget_bytes"), *decoders]

        assert list(client.models.list()) == [] and budgets() == [22_000_000, None, None]
        with pytest.raises(openai.NotFoundError, match='"chat" is not loaded: not loaded yet'):
            replied()
        assert change(server, "chat", "load") == change(server, "chat", "load") == (200, "")
        assert [one.id for one in client.models.list()] == ["chat"] and replied() == reply
        assert change(server, "plain", "load") == (200, "") == change(server, "linked", "load")
        assert [one.id for one in client.models.list()] == ["chat", "linked"] and replied("linked") == reply
        assert server.client.post("/v2/models/plain/infer", json=asked).status_code == 200
        assert all(one > 0 for one in budgets()) and sum(budgets()) <= 22_000_000
        listed = server.client.post("/v2/repository/index", json={"ready": True}).json()
        assert [one["name"] for one in listed] == ["chat", "linked", "plain"]
        assert server.client.get("/v2/models/chat/ready").status_code == 200
        refused = server.client.post("/v2/models/chat/infer", json=asked)
        assert refused.status_code == 404 and "is a decoder, which replies at /v1/chat/completions" in refused.json()["error"]
        assert change(server, "chat", "unload") == (200, "") == change(server, "linked", "unload")
        assert list(client.models.list()) == [] and budgets() == [22_000_000, None, None]
        with pytest.raises(openai.NotFoundError, match='"chat" is not loaded: unloaded'):
            replied()
        assert server.client.get("/v2/models/chat/ready").status_code == 404
        assert change(server, "chat", "load") == (200, "") and replied() == reply


def test_all_of_a_repository_with_a_draft(repository, draft_library, asked, reply):
    """At once, or when a client asks; a draft that was replaced is opened anew."""
    drafts = repository.parent / "drafts"
    shutil.copytree(draft_library.parent, drafts)
    small = repository.parent / "small.so"
    small.symlink_to(drafts / draft_library.name)
    options = ["--repository", repository, "--draft", f"chat={small}", "--budget", "60MB", "--threads", "1"]
    with_draft = needs_of(repository / "chat" / "model.so", small).part.most

    def replied(server, name="chat") -> str:
        answer = server.client.post("/v1/chat/completions", json=GREEDY | {"model": name, "messages": CHAT, "max_tokens": 20})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]

    with Server(*options, "--load-all") as server:
        listed = server.client.post("/v2/repository/index", json={"ready": True}).json()
        assert [one["name"] for one in listed] == ["chat", "linked", "plain"]
        assert [replied(server), replied(server, "linked")] == [reply, reply]
        assert server.client.post("/v2/models/plain/infer", json=asked).status_code == 200
        assert server.metric("flexcomp_decoder_budget_bytes", model="chat") == with_draft
    with Server(*options) as server:
        assert change(server, "chat", "load") == change(server, "chat", "load") == (200, "") and replied(server) == reply
        assert server.metric("flexcomp_decoder_budget_bytes", model="chat") == with_draft
        text = (drafts / "tokenizer.json").read_text()
        (drafts / "tokenizer.json").write_text(text.replace("<end>", "<fin>"))
        code, error = change(server, "chat", "load")
        assert code == 400 and "token 0 of the draft's tokenizer in drafts is" in error and "of that in chat: take" in error
        assert change(server, "chat", "load")[0] == 400
        (drafts / "tokenizer.json").write_text(text)
        assert change(server, "chat", "load") == (200, "") and replied(server) == reply
        assert change(server, "plain", "load") == (200, "")


def test_drafts_that_cannot_be(repository, decoder_library, tmp_path):
    options = ["serve", "--repository", repository, "--budget", "40MB", "--port", "0"]
    done = calls.call(*options, "--draft", f"chat={tmp_path / 'none.so'}")
    assert done.returncode == 4 and "none.so" in done.stderr
    done = calls.call(*options, "--draft", f"plain={decoder_library}", "--load-all")
    assert done.returncode == 2 and "--draft plain=… is for a decoder" in done.stderr and "there is chat, linked" in done.stderr
    with Server(*options[1:-2], "--draft", f"plain={decoder_library}") as server:
        code, error = change(server, "plain", "load")
        assert code == 400 and '"plain" is no decoder, and takes no draft' in error


def test_clients_do_not_learn_where_a_model_lies(repository):
    (repository / "chat" / "tokenizer_config.json").unlink()
    with Server("--repository", repository, "--load-all", "--budget", "40MB", "--threads", "1") as server:
        answer = server.client.post("/v1/chat/completions", json=GREEDY | {"messages": CHAT})
        assert answer.status_code == 400 and answer.json()["error"]["message"].startswith("chat has no chat template")


def test_one_that_has_no_room_is_refused_with_the_numbers(repository, first, asked):
    needs, pool = needs_of(repository / "linked.so").part.least, first.program.rungs[0].budget
    total = needs + pool + 100_000
    options = ["--budget", str(total), "--request-memory", "100kB", "--threads", "1"]
    with Server("--repository", repository, *options) as server:
        assert change(server, "chat", "load") == (200, "") == change(server, "plain", "load")
        code, error = change(server, "linked", "load")
        assert code == 409 and "too few for decoders and models together (plain, chat, linked)" in error
        assert f"{enough(2 * needs + pool, Units.BINARY)} are the fewest" in error and human_bytes(total - 100_000) in error
        assert server.client.post("/v2/models/plain/infer", json=asked).status_code == 200
        assert server.client.post("/v1/completions", json={**GREEDY, "prompt": "x", "max_tokens": 2}).status_code == 200
        assert change(server, "plain", "unload") == (200, "") == change(server, "chat", "unload")
        assert change(server, "linked", "load") == (200, "") == change(server, "plain", "load")
        assert change(server, "chat", "load")[0] == 409


def test_libraries_in_folders_of_their_own(repository):
    (repository / "..data").mkdir()  # as Kubernetes mounts files
    shutil.copy(repository / "chat" / "model.so", repository / "..data")
    (repository / "empty").mkdir()
    assert {name: path.name for name, path in libraries_in(repository).items()} == {
        "chat": "model.so", "linked": "linked.so", "plain": "plain.so",
    }  # fmt: skip


def test_a_decoder_needs_its_tokenizer(repository):
    (repository / "chat" / "tokenizer.json").unlink()
    with flexcomp.Pool("20MB") as pool, pytest.raises(InputError, match=r"decoders need tokenizer\.json next to it"):
        Models(Whole(pool, 20_000_000), {}, repository).load("chat")


# ------------------------------------------------------------------------------------------------------ in this process


@dataclass
class Served:
    """A service in this process, with the parts that tests look at."""

    whole: Whole
    models: Models
    service: Service


@pytest.fixture
def served(repository):
    with flexcomp.Pool(16_000_000, threads=1) as pool:
        whole, room = Whole(pool, 16_000_000, threads=1), Room(1 << 20)
        models = Models(whole, {}, repository)
        yield Served(whole, models, Service(pool, models, room, Metrics(pool, room, whole), Log(), 5, languages=whole))
        whole.close()


def held(whole) -> int:
    return whole.pool.budget + sum(one.budget for one in whole.values())


def test_the_budget_is_that_of_all(served, repository):
    whole, models = served.whole, served.models
    parts = [needs_of(repository / "linked.so").part, pool_part([])]
    models.load("chat")
    assert whole["chat"].budget == min(parts[0].most, 16_000_000)
    models.load("plain")
    whole.set_budget(6_000_000)
    assert held(whole) <= 6_000_000
    before = whole["chat"].budget
    (repository / "broken").mkdir()
    for name in ("model.so", "model.weights"):
        shutil.copy(repository / "chat" / name, repository / "broken")
    (repository / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="is no tokenizer"):
        models.load("broken")
    assert whole["chat"].budget == before and held(whole) <= 6_000_000 and "broken" not in whole
    whole.set_budget(16_000_000)
    models.load("linked")
    assert held(whole) <= 16_000_000 and whole.resident_arena() <= 16_000_000
    least = whole.ladder[0].budget_bytes
    with pytest.raises(BudgetError, match="too few"):
        whole.set_budget(least - 1)
    whole.set_budget(least)
    assert held(whole) <= least
    models.unload("linked")
    models.unload("chat")
    models.unload("plain")
    assert whole.pool.budget == least and not whole


@pytest.mark.parametrize("is_stream", [False, True])
def test_unloading_tells_whoever_chats(served, monkeypatch, is_stream):
    """The reply is in the middle then; others that wait for their turn are told, too."""
    models, whole, service = served.models, served.whole, served.service
    models.load("chat")
    turns, advance = whole["chat"].turns, TextReply.advance

    def advance_and_wait(self: TextReply) -> str:
        piece = advance(self)
        until = time.monotonic() + 60
        while len(self.reply.tokens) == 5 and turns._closed is None and time.monotonic() < until:
            time.sleep(0.001)
        return piece

    monkeypatch.setattr(TextReply, "advance", advance_and_wait)
    body = json.dumps({**GREEDY, "prompt": "the cat", "stream": is_stream, "max_tokens": 500}).encode()

    async def reading() -> bytes:
        return body

    async def asking() -> list:
        app, answers = make_app(service), [[], []]
        asked = [asyncio.create_task(ask(app, "/v1/completions", len(body), reading, messages=one)) for one in answers]
        while not turns._turns or len(turns._turns[0].reply.reply.tokens) < 5 or len(turns._turns) < 2:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(models.unload, "chat")
        await asyncio.gather(*asked)
        assert await ask(app, "/v1/completions", len(body), reading) == 404
        return answers

    for messages in asyncio.run(asyncio.wait_for(asking(), 60)):
        status, text = messages[0]["status"], b"".join(one.get("body", b"") for one in messages).decode()
        assert "the model was unloaded before the reply was complete: send the request again" in text
        assert status == (200 if is_stream and len(messages) > 2 else 404)
    assert service.room.used == 0
    with pytest.raises(Refusal, match="unloaded"):
        turns.begin(None, None)


def test_tables_of_grammars_go_with_their_decoder(served):
    models, whole, room = served.models, served.whole, served.service.room
    models.load("chat")
    decoder = whole["chat"]
    decoder.hold_tables(room)
    assert room.used > 0
    models.unload("chat")
    assert room.used == 0
    with pytest.raises(Refusal, match="unloaded"):
        decoder.hold_tables(room)
    assert b"flexcomp_decoder" not in served.service.metrics.text()
