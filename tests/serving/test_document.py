"""The OpenAPI document says what the server does."""

from __future__ import annotations

import re

import pytest

from flexcomp.serving.app import make_routes
from flexcomp.serving.documents import openapi
from flexcomp.serving.service import Service


def test_it_has_every_route():
    app = make_routes(Service(*[None] * 6))
    routes = {(route.path, method.lower()) for route in app.routes for method in route.methods if method != "HEAD"}
    assert routes == {(path, method) for path, item in openapi(with_token=False)["paths"].items() for method in item}


def test_every_reference_leads_somewhere():
    document = openapi(with_token=True)
    found = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert found == document["components"]["schemas"].keys()


def test_a_server_asks_for_its_token_where_it_says_so():
    for with_token in (True, False):
        document = openapi(with_token=with_token)
        assert ("security" in document) == with_token
        for path, item in document["paths"].items():
            for operation in item.values():
                assert ("401" in operation["responses"]) == (with_token and "health" not in path)
                assert ("403" in operation["responses"]) == (not with_token)


@pytest.mark.hypothesis
def test_whatever_is_asked_the_answer_is_in_it(server):
    from tests.serving.cases import try_all

    made = try_all(server.url, 100)
    assert sum(counts.total() for counts in made.values()) >= 90
    assert sum(counts[200] for label, counts in made.items() if label.endswith("/infer")) > 0
    assert not [one for one in server.said if one["level"] == "error"]
    for name in ("first", "second"):
        assert server.client.post(f"/v2/repository/models/{name}/load").status_code == 200
