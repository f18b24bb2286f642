"""Requests that schemathesis makes up from the server's OpenAPI document, right ones and wrong ones.

    python -m tests.serving.cases a.so b.so --cases 5000

serves the libraries and asks that often; what the document does not say, and any fault of the server, ends it with an error.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from pathlib import Path
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


def try_all(url: str, cases: int, headers: dict[str, str] | None = None) -> dict[str, Counter]:
    """How often each operation was answered with each status, in about `cases` requests. Raises what a check finds wrong."""
    headers = headers or {}
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    names = [one["name"] for one in httpx.post(f"{url}/v2/repository/index", headers=headers, timeout=60).json()]
    models = {name: httpx.get(f"{url}/v2/models/{name}", headers=headers, timeout=60).json() for name in names}
    operations = [found.ok() for found in schema.get_all_operations()]
    weights = [16 if list(one.body) else 4 if list(one.iter_parameters()) else 1 for one in operations]
    made: dict[str, Counter] = {}
    for operation, weight in zip(operations, weights, strict=True):
        # Where there is no body, every path is right, and nothing can be wrong.
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if weight == 16 else (GenerationMode.POSITIVE,)
        counts = made.setdefault(operation.label, Counter())
        for mode in modes:
            _try(operation, mode, math.ceil(cases * weight / sum(weights) / len(modes)), headers, models, counts)
    return made


def _try(
    operation: Any, mode: GenerationMode, cases: int, headers: dict[str, str], models: dict[str, dict], counts: Counter
) -> None:
    @settings(max_examples=cases, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(
        operation.as_strategy(generation_mode=mode), st.sampled_from(sorted(models)), st.booleans(), st.booleans(), st.integers(0)
    )
    def ask(case, name: str, known: bool, whole: bool, choice: int) -> None:
        if (known or whole) and "name" in case.path_parameters:  # or no model would ever be met
            case.path_parameters |= {"name": name} | ({"version": "1"} if "version" in case.path_parameters else {})
        if whole and isinstance(case.body, dict) and "inputs" in case.body:
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


def main() -> None:
    from tests.serving.servers import Server

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", type=Path)
    parser.add_argument("--budget", default="200MB")
    parser.add_argument("--cases", type=int, default=5000)
    asked = parser.parse_args()
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
