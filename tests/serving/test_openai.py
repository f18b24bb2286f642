"""OpenAI's protocol, as its Python client speaks it: replies are those of the decoder alone, whoever else asks."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

import flexcomp
from benchmarks.lab.chats import MOST_OVER_NBYTES, run
from flexcomp.generation import Sampling, Text
from flexcomp.serving import LanguageModel, Metrics, Models, Room, Service, Whole, make_app
from flexcomp.serving import service as service_file
from flexcomp.serving.answers import Refusal
from flexcomp.serving.language import needs_of
from flexcomp.serving.logs import Log
from tests.cli import calls
from tests.serving.in_process import ask
from tests.serving.servers import Server, raw_request, status_of

CHAT = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "the cat"}]
GREEDY = {"model": "chat", "temperature": 0}


@pytest.fixture(scope="module")
def server(decoder_library, first):
    with Server(f"chat={decoder_library}", first.library, "--budget", "24MB", "--threads", "1", "--log", "json") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    import openai  # takes a second

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def alone(decoder_library):
    with flexcomp.load(decoder_library, threads=1) as session:
        yield Text(session, decoder_library.parent)


def test_models(client):
    import openai

    assert [one.id for one in client.models.list()] == ["chat"]
    assert client.models.retrieve("chat").owned_by == "flexcomp"
    with pytest.raises(openai.NotFoundError, match="no model 'other' for text; there is chat"):
        client.models.retrieve("other")


def test_a_chat(client, alone):
    wanted = alone.chat(CHAT, 30)
    text = "".join(wanted)
    found = client.chat.completions.create(messages=CHAT, max_completion_tokens=30, **GREEDY)
    (choice,) = found.choices
    assert choice.message.role == "assistant" and choice.message.content == text
    assert choice.finish_reason == {"capacity": "length"}.get(wanted.reply.finish, wanted.reply.finish)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (wanted.reply.prompt_tokens, len(wanted.reply.tokens))
    parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in CHAT]
    again = client.chat.completions.create(messages=parts, max_tokens=30, **GREEDY)
    assert again.choices[0].message.content == text
    assert again.usage.prompt_tokens_details.cached_tokens == found.usage.prompt_tokens - 1


def test_a_stream(client, alone):
    pieces = alone.chat(CHAT, 30)
    wanted = "".join(pieces)
    options = {"messages": CHAT, "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, used = client.chat.completions.create(**options, **GREEDY)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == wanted
    assert [one.choices[0].finish_reason for one in chunks][:-1] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason and used.choices == [] and used.usage.completion_tokens == len(pieces.reply.tokens)


def test_completions(client, alone):
    wanted = "".join(alone.reply("the cat", 16))
    found = client.completions.create(prompt="the cat", **GREEDY)
    assert found.choices[0].text == wanted and found.usage.completion_tokens == 16
    tokens = alone.tokenizer.encode("the cat")
    chunks = list(client.completions.create(prompt=tokens, stream=True, **GREEDY))
    assert "".join(one.choices[0].text for one in chunks) == wanted
    stop = wanted[4:6]
    stopped = client.completions.create(prompt=[tokens], stop=stop, **GREEDY).choices[0]
    assert stopped.text == wanted[: wanted.index(stop)] and stopped.finish_reason == "stop"


def test_the_same_seed_gives_the_same_text(client, alone):
    def drawn(seed: int) -> str:
        options = {"top_p": 0.9, "presence_penalty": 0.5, "extra_body": {"top_k": 20}}
        return client.completions.create(model="chat", prompt="x", seed=seed, max_tokens=20, **options).choices[0].text

    assert drawn(1) == drawn(1) != drawn(2)
    sampling = Sampling(temperature=1.0, top_k=20, top_p=0.9, presence_penalty=0.5, seed=1)
    assert drawn(1) == "".join(alone.reply("x", 20, sampling=sampling))


def test_eight_clients_while_the_budget_changes(decoder_library, first):
    def enough(counts):
        return counts["replies"] > 24 and counts["left"] > 0

    found = run(decoder_library, [first.library], "24MB", clients=8, seconds=8, seed=3, enough=enough)
    assert found["wrong"] == found["faults"] == 0 and enough(found)
    assert found["inferences of others"] > 0 and found["changes"] > 3
    assert found["over the budget, MiB"] * 2**20 <= MOST_OVER_NBYTES


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"n": 2}, "'n' is not supported, other than as 1"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "'tools' is not supported"),
        ({"functions": [{"name": "f"}]}, "'functions' is not supported"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "'audio' is not supported: leave it out"),
        ({"modalities": ["text", "audio"]}, "'modalities' is not supported"),
        ({"response_format": {"type": "grammar"}}, "response_format must be of type text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "json_schema must be an obj"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}}, "Invalid type: foo"),
        ({"logprobs": 3}, "logprobs must be true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be a whole number from 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"temperature": -1}, "temperature must be a number"),
        ({"max_tokens": 0}, "max_tokens must be a whole number above 0"),
        ({"stop": ["a"] * 17}, "stop must be a text"),
        ({"messages": []}, "messages must be a list of 1 to"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\] must have a role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "of type 'image_"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "places: shorten it"),
        ({"extra_body": {"guided_regex": "x"}}, "'guided_regex' is not known here"),
    ],
    ids=str,
)
def test_what_is_refused(client, options, reason):
    import openai

    with pytest.raises(openai.BadRequestError, match=reason):
        client.chat.completions.create(**{"messages": CHAT, "max_tokens": 4, **GREEDY, **options})


def test_errors_name_the_field(client):
    import openai

    for options, field in (
        ({"n": 3}, "n"), ({"stop": 3}, "stop"), ({"response_format": {"type": "x"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"top_p": 2}, "top_p"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(**{"messages": CHAT, "max_tokens": 4, **GREEDY, **options})
        assert raised.value.param == field


def test_log_probabilities(client, alone):
    sampling = Sampling(logprobs=2)
    wanted = alone.chat(CHAT, 30, sampling=sampling)
    text = "".join(wanted)
    options = {"messages": CHAT, "max_tokens": 30, "logprobs": True, "top_logprobs": 2, **GREEDY}
    whole = client.chat.completions.create(**options).choices[0].logprobs.content
    streamed = [one.choices[0] for one in client.chat.completions.create(**options, stream=True)]
    parts = [entry for one in streamed if one.logprobs is not None for entry in one.logprobs.content]
    assert [one.to_dict() for one in whole] == [one.to_dict() for one in parts]
    assert b"".join(bytes(one.bytes) for one in whole).decode("utf-8", "replace") == text
    assert [one.logprob for one in whole] == pytest.approx([one.logprob for one in wanted.reply.chances], abs=1e-4)
    assert [len(one.top_logprobs) for one in whole] == [2] * len(whole)
    wanted = alone.reply("the cat", 16, sampling=sampling)
    text = "".join(wanted)
    (choice,) = client.completions.create(prompt="the cat", logprobs=2, **GREEDY).choices
    found = choice.logprobs
    assert found.token_logprobs == pytest.approx([one.logprob for one in wanted.reply.chances], abs=1e-4)
    assert all(len(one) == 2 for one in found.top_logprobs)
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)
    stopped = client.completions.create(prompt="the cat", logprobs=0, stop=text[4:6], stream=True, **GREEDY)
    chunks = [one.choices[0] for one in stopped]
    count = sum(len(one.logprobs.tokens) for one in chunks if one.logprobs is not None)
    usage = client.completions.create(prompt="the cat", stop=text[4:6], **GREEDY).usage
    assert count == usage.completion_tokens


def test_replies_in_json(client):
    schema = {"type": "object", "properties": {"cat": {"type": "boolean"}}, "required": ["cat"], "additionalProperties": False}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed in range(3):
        options = {"messages": CHAT, "max_tokens": 200, "model": "chat", "seed": seed, "response_format": format_}
        whole = client.chat.completions.create(**options).choices[0]
        assert json.loads(whole.message.content).keys() == {"cat"} and whole.finish_reason == "stop"
        pieces = client.chat.completions.create(**options, stream=True)
        assert "".join(one.choices[0].delta.content or "" for one in pieces) == whole.message.content
    options["response_format"] = {"type": "json_object"}
    assert client.chat.completions.create(**options).choices[0].message.content.startswith("{")


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"model": 1, "prompt": "x"}', b'{"prompt": "x"}', b"[" * 5000])
def test_bodies_that_are_no_request(server, body):
    answer = server.client.post("/v1/completions", content=body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_of_megabytes_is_refused_before_it_is_read(server):
    with server.connection() as connection:
        connection.sendall(raw_request("/v1/completions", b"", length=50_000_000))
        assert status_of(connection.recv(4096)) == 413


def outcome_of_one_that_goes(server, is_stream: bool) -> str:
    """How a request of a client ends, by the log, that goes before it has the answer."""

    def ends() -> list[str]:
        return [one["outcome"] for one in server.said if one["event"] == "request"]

    before = len(ends())
    body = json.dumps({"prompt": "the cat", "max_tokens": 100_000, "stream": is_stream, **GREEDY}).encode()
    with server.connection() as connection:
        connection.sendall(raw_request("/v1/completions", body))
        if is_stream:
            assert status_of(connection.recv(512)) == 200
        else:
            time.sleep(0.1)
    until = time.monotonic() + 20
    while len(found := ends()) == before:
        assert time.monotonic() < until
        time.sleep(0.01)
    return found[-1]


def test_a_client_that_goes_ends_its_reply(server, client):
    """On a busy machine a reply may be complete before the server sees that."""
    for is_stream in (True, False):
        assert any(outcome_of_one_that_goes(server, is_stream) == "abandoned" for _ in range(10))
    assert server.metric("flexcomp_requests_total", model="chat", outcome="abandoned") >= 2
    assert client.completions.create(prompt="x", max_tokens=2, **GREEDY).usage.completion_tokens == 2


def test_the_other_protocol_is_there_too(server, asked):
    assert server.client.post("/v2/models/first/infer", json=asked).status_code == 200
    assert server.client.post("/v2/models/chat/infer", json=asked).status_code == 404
    assert server.client.get("/v2/models/chat").json().keys() == {"error"}


@pytest.fixture
def service(decoder_library):
    with flexcomp.Pool(1, threads=1) as pool:
        room = Room(1 << 20)
        language = LanguageModel(decoder_library, 6_000_000, 1, 4)
        yield Service(pool, Models(Whole(pool, 1), {}), room, Metrics(pool, room), Log(), 0.5, languages={"chat": language})
        language.close()


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_goes_with_the_whole_answer_was_answered(service, monkeypatch, is_stream):
    """Servers say that it has gone as soon as they have the last body, before they have sent it."""
    outcomes = []
    monkeypatch.setattr(service.log, "request", lambda **facts: outcomes.append(facts["outcome"]))
    body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": is_stream, **GREEDY}).encode()

    async def reading():
        return body

    async def asking() -> int:
        is_last = asyncio.Event()

        async def sending(message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                is_last.set()
                await asyncio.sleep(0.05)

        return await ask(make_app(service), "/v1/completions", len(body), reading, stay=is_last.wait, sending=sending)

    assert asyncio.run(asking()) == 200
    assert outcomes == ["answered"]


@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_goes_while_a_piece_is_sent(service, monkeypatch, turns):
    """The cancel may come when the piece is sent and the reply not told yet: so many turns of the loop later."""
    outcomes = []
    monkeypatch.setattr(service.log, "request", lambda **facts: outcomes.append(facts["outcome"]))
    body = json.dumps({"prompt": "the cat", "stream": True, "max_tokens": 2000, **GREEDY}).encode()

    async def reading():
        return body

    async def asking() -> None:
        waits, goes_on = asyncio.Event(), asyncio.Event()

        async def sending(message) -> None:
            if message["type"] == "http.response.body":
                waits.set()
                await goes_on.wait()

        async def stay() -> None:
            await waits.wait()
            goes_on.set()
            for _ in range(turns):
                await asyncio.sleep(0)

        assert await ask(make_app(service), "/v1/completions", len(body), reading, stay=stay, sending=sending) == 200

    asyncio.run(asyncio.wait_for(asking(), 10))
    assert outcomes == ["abandoned"] and service.room.used == 0


def test_tables_of_grammars_count_as_memory_of_requests(service):
    model = service.languages["chat"]
    model.hold_tables(service.room)
    model.hold_tables(service.room)
    assert service.room.used == model.text.grammars.nbytes > 0
    with service.room.share() as share:
        with pytest.raises(Refusal, match="that the server holds at once"):
            share.hold(service.room.nbytes)
    model.text.grammars._vocabulary = 1 << 20
    with pytest.raises(Refusal, match="the tables of all tokens"):
        model.hold_tables(service.room)


def test_a_client_that_never_reads_holds_nobody(service):
    app = make_app(service)
    slow = json.dumps({"prompt": "the cat", "stream": True, "max_tokens": 2000, **GREEDY}).encode()
    quick = json.dumps({"prompt": "x", "max_tokens": 3, **GREEDY}).encode()

    async def never(message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def reading(body: bytes):
        return body

    async def both() -> None:
        waiting = [
            asyncio.create_task(ask(app, "/v1/completions", len(slow), lambda: reading(slow), sending=never)) for _ in range(3)
        ]
        while len(turns._turns) < 3:
            await asyncio.sleep(0.01)
        begun.extend(turns._turns)
        assert await ask(app, "/v1/completions", len(quick), lambda: reading(quick)) == 200
        await asyncio.gather(*waiting)
        while turns._turns:
            await asyncio.sleep(0.01)

    begun, turns = [], service.languages["chat"].turns
    asyncio.run(asyncio.wait_for(both(), 30))
    assert service.room.used == 0
    finishes = [turn.reply.reply.finish for turn in begun]
    assert len(finishes) == 3 and {*finishes} <= {"cancelled", "length"}  # some replies end before their client's time is up


def test_few_requests_wait_to_be_read(service, monkeypatch):
    """Others are refused before they hold more than their bodies."""
    monkeypatch.setattr(service_file, "_MOST_READ", 3)
    body = json.dumps({"prompt": "the cat", "max_tokens": 2, **GREEDY}).encode()
    app = make_app(service)

    async def reading() -> bytes:
        return body

    async def all_of_them() -> list[int]:
        async with service.reading:
            asked = [asyncio.create_task(ask(app, "/v1/completions", len(body), reading)) for _ in range(5)]
            while sum(one.done() for one in asked) < 2:
                await asyncio.sleep(0.001)
        return sorted(await asyncio.gather(*asked))

    assert asyncio.run(asyncio.wait_for(all_of_them(), 60)) == [200, 200, 200, 429, 429]
    assert service.room.used == 0 and service.reading.waiting == 0


def test_what_a_client_has_not_taken_is_one_piece(service, alone):
    """Of so many tokens each as a message of its own, waiting clients would hold more than what their requests count for."""
    body = json.dumps({"prompt": "the cat", "stream": True, "max_tokens": 500, **GREEDY}).encode()
    turns, messages = service.languages["chat"].turns, []

    async def reading():
        return body

    async def sending(message) -> None:
        while message["type"] == "http.response.body" and turns._turns:
            await asyncio.sleep(0.001)

    asked = ask(make_app(service), "/v1/completions", len(body), reading, messages=messages, sending=sending)
    assert asyncio.run(asyncio.wait_for(asked, 60)) == 200
    said = b"".join(one.get("body", b"") for one in messages).decode().split("\n\n")
    parts = [json.loads(one.removeprefix("data: ")) for one in said if one and not one.endswith("[DONE]")]
    assert "".join(one["choices"][0]["text"] for one in parts) == "".join(alone.reply("the cat", 500))
    assert len(parts) <= 5


def test_a_draft_in_the_same_budget(decoder_library, draft_library, alone):
    """Replies are those without; /metrics tells the memory of both, and tokens."""
    wanted = ["".join(alone.reply(prompt, 30)) for prompt in ("the cat", "cat cat", "ab")]
    budget = 8_000_000
    options = ["--draft", f"chat={draft_library}", "--threads", "1", "--request-memory", "1MB"]
    with Server(f"chat={decoder_library}", "--budget", str(budget), *options) as server:
        asked = [server.client.post("/v1/completions", json=GREEDY | {"prompt": one, "max_tokens": 30}).json()
                 for one in ("the cat", "cat cat", "ab")]  # fmt: skip
        assert [one["choices"][0]["text"] for one in asked] == wanted

        def told(name):
            return server.metric(f"flexcomp_decoder_{name}", model="chat")

        assert told("tokens_total") == sum(one["usage"]["completion_tokens"] for one in asked)
        assert told("prompt_tokens_total") == sum(one["usage"]["prompt_tokens"] for one in asked)
        assert 0 < told("arena_bytes") + told("saved_cache_limit_bytes") <= told("budget_bytes") <= budget - 1_000_000
        assert 0 < told("arena_resident_bytes") <= told("budget_bytes")  # also of another shape's plan
        assert told("read_bytes_total") > 0 and 0 <= told("right_tokens_total") <= told("tried_tokens_total")
        assert 0 <= told("saved_cache_bytes") <= told("saved_cache_limit_bytes")
        assert told("replies") == told("waiting") == 0


def test_needs_with_a_draft(decoder_library, draft_library):
    """A draft gets all that it can use, before the decoder gets more than its least."""
    plain, both = needs_of(decoder_library), needs_of(decoder_library, draft_library)
    (decoder, draft), least = both.sessions, both.part.least
    assert both.session.least == decoder.least + draft.least and both.caches > plain.caches
    for nbytes in (least, least + 1, least + draft.most, both.part.most - 1, both.part.most):
        saved, *sessions = both.divided(nbytes)
        assert saved + sum(sessions) + both.carried == nbytes
        assert sessions[0] >= decoder.least and draft.least <= sessions[1] <= draft.most
        assert sessions[1] == draft.most or sessions[0] == decoder.least
    assert both.divided(both.part.most)[1:] == (decoder.most, draft.most)


def test_a_draft_of_no_decoder_is_refused(decoder_library, first):
    done = calls.call("serve", first.library, "--budget", "20MB", "--draft", f"first={decoder_library}")
    assert done.returncode == 2 and "--draft first=… is for a decoder" in done.stderr and "there is none" in done.stderr
