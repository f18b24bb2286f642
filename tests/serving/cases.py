"""Requests that schemathesis makes up from the server's OpenAPI document, right ones and wrong ones.

    python -m tests.serving.cases a.so b.so chat=decoder/model.so --cases 5000

serves the libraries and asks that often; models for text are asked by OpenAI's routes. What the document does not say, and any
fault of the server, ends it with an error.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from flexcomp.serving.protocol import HEADER

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
)


# Of requests for text, right and wrong ones.
_OPTIONS = {
    "stream": st.booleans(), "logprobs": st.sampled_from([True, 3, 0, 9]), "top_logprobs": st.integers(-1, 22),
    "temperature": st.floats(-1, 3), "top_p": st.floats(0, 1.1), "top_k": st.integers(-1, 99), "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-3, 3), "seed": st.integers(), "stop": st.text(max_size=3), "n": st.integers(0, 2),
    "logit_bias": st.just({"1": 5}), "stream_options": st.sampled_from([{"include_usage": True}, {"x": 1}, None]),
    "response_format": st.sampled_from(
        [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}, {"type": "json_schema"},
         {"type": "json_schema", "json_schema": {"schema": {"type": ["integer", "x"]}}}, {"type": []}]
    ),
}  # fmt: skip
_SOME = st.sets(st.sampled_from(sorted(_OPTIONS)), max_size=2).flatmap(
    lambda names: st.fixed_dictionaries({name: _OPTIONS[name] for name in names})
)
_PROMPTS = {"messages": [{"role": "user", "content": "the cat"}], "prompt": "the cat", "input": ["the cat"]}


def try_all(url: str, cases: int, headers: dict[str, str] | None = None) -> dict[str, Counter]:
    """How often each operation was answered with each status, in about `cases` requests. Raises what a check finds wrong."""
    headers = headers or {}
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    names = [one["name"] for one in httpx.post(f"{url}/v2/repository/index", headers=headers, timeout=60).json()]
    models = {name: httpx.get(f"{url}/v2/models/{name}", headers=headers, timeout=60).json() for name in names}
    texts = [one["id"] for one in httpx.get(f"{url}/v1/models", headers=headers, timeout=60).json()["data"]]
    operations = [found.ok() for found in schema.get_all_operations()]
    weights = [16 if list(one.body) else 4 if list(one.iter_parameters()) else 1 for one in operations]
    made: dict[str, Counter] = {}
    for operation, weight in zip(operations, weights, strict=True):
        for name in names:  # which the operation before may have unloaded
            httpx.post(f"{url}/v2/repository/models/{name}/load", headers=headers, timeout=60).raise_for_status()
        # Where there is no body, every path is right, and nothing can be wrong.
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if weight == 16 else (GenerationMode.POSITIVE,)
        counts = made.setdefault(operation.label, Counter())
        for mode in modes:
            _try(operation, mode, math.ceil(cases * weight / sum(weights) / len(modes)), headers, models, texts, counts)
    return made


def _try(
    operation: Any, mode: GenerationMode, cases: int, headers: dict[str, str], models: dict[str, dict], texts: list[str],
    counts: Counter,
) -> None:  # fmt: skip
    @settings(max_examples=cases, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(
        operation.as_strategy(generation_mode=mode), st.sampled_from(sorted(models)), st.booleans(), st.booleans(),
        st.integers(0), st.sampled_from(texts or [""]), _SOME,
    )  # fmt: skip
    def ask(case, name: str, known: bool, whole: bool, choice: int, text: str, options: dict) -> None:
        if not counts[200]:  # until one was right, or few cases might have none
            known = whole = True
        if text and case.path.startswith("/v1/"):
            _meet(case, text, known, whole, options)
        elif (known or whole) and "name" in case.path_parameters:  # or no model would ever be met
            case.path_parameters |= {"name": name} | ({"version": "1"} if "version" in case.path_parameters else {})
        is_network = "inputs" in models[name]  # a decoder has none, and its routes say so
        if whole and is_network and isinstance(case.body, dict) and "inputs" in case.body:
            case.body = {**case.body, "inputs": _inputs(models[name], choice), "outputs": []}
            (case.headers or {}).pop(HEADER, None)
        counts[case.call_and_validate(checks=CHECKS, headers=headers, timeout=60).status_code] += 1

    ask()


def _inputs(model: dict, choice: int) -> list[dict]:
    """Right ones, of any length where the model pads; for models in which at most one extent has a name."""
    parameters = model.get("parameters", {})
    lengths = [int(shape.partition("=")[2]) for shape in parameters["shapes"].split("; ")] if parameters else [1]
    if parameters.get("padded"):
        lengths = list(range(1, max(lengths) + 1))
    length = lengths[choice % len(lengths)]
    shapes = [[length if extent == -1 else extent for extent in port["shape"]] for port in model["inputs"]]
    ports = zip(model["inputs"], shapes, strict=True)
    return [port | {"shape": shape, "data": [0] * math.prod(shape)} for port, shape in ports]


def _meet(case: Any, name: str, known: bool, whole: bool, options: dict[str, Any]) -> None:
    """Have a case of OpenAI's routes ask for a model that is there, and with a prompt that is right."""
    if "name" in case.path_parameters and known:
        case.path_parameters |= {"name": name}
    if isinstance(case.body, dict) and known:
        case.body = {**case.body, "model": name, "max_tokens": 4}
        if whole:
            case.body = {key: value for key, value in case.body.items() if key in ("model", *_PROMPTS)} | options
            case.body |= {key: value for key, value in _PROMPTS.items() if key in case.body}
            case.body |= {"max_tokens": 4} if "input" not in case.body else {}


def main() -> None:
    from tests.serving.servers import Server

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", metavar="[NAME=]LIBRARY")
    parser.add_argument("--budget", default="200MB")
    parser.add_argument("--cases", type=int, default=5000)
    asked = parser.parse_args()
    settings.register_profile("command", database=None, deadline=None)
    settings.load_profile("command")
    with Server(*asked.libraries, "--budget", asked.budget) as server:
        made = try_all(server.url, asked.cases)
        alive = server.process.poll() is None and server.client.get("/v2/health/ready").status_code == 200
        faults = [one for one in server.said if one["level"] == "error"]
    for label, counts in made.items():
        listed = ", ".join(f"{count} of {status}" for status, count in sorted(counts.items()))
        print(f"{counts.total():6d}  {label}: {listed}")
    total = sum(counts.total() for counts in made.values())
    print(f"{total:6d}  in all; the server is {'alive' if alive else 'dead'}, and logged {len(faults)} faults")
    sys.exit(bool(faults or not alive))


if __name__ == "__main__":
    main()
