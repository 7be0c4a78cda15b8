"""The description of the API says what the gateway does."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate
from starlette.routing import Route

from qstate.gateway.app import Gateway
from qstate.gateway.openapi import document
from qstate.gateway.settings import GatewaySettings

OPERATIONS = [
    (path, method, found) for path, methods in document()["paths"].items() for method, found in methods.items()
]


def test_every_route_is_described_and_no_other() -> None:
    routes = Gateway(GatewaySettings([("127.0.0.1", 1)])).app.routes
    served = {
        (route.path, method.lower())
        for route in routes
        if isinstance(route, Route) and route.path.startswith("/v1")
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {(path, method) for path, method, _ in OPERATIONS}


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=lambda value: str(value)[:60])
def test_parameters_are_those_that_are_taken(
    http: httpx.Client, path: str, method: str, operation: dict[str, Any]
) -> None:
    url = path.format(job="nyc", state="lastTemperature")
    detail = http.request(method, url, params={"unheard": "of"}).json()["detail"]
    taken = detail.partition("there are ")[2].split(", ")
    parameters = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
    assert taken == (parameters or ["none"])


def test_the_document_is_valid() -> None:
    validate(document())


def test_references_within_the_document_lead_somewhere() -> None:
    found = document()
    names = set(re.findall(r"#/components/schemas/(\w+)", str(found)))
    assert names == set(found["components"]["schemas"])


def test_the_document_and_the_page_to_try_it_load_nothing_from_elsewhere(http: httpx.Client) -> None:
    assert http.get("/openapi.json").json()["openapi"].startswith("3.1")
    for path in ("/try.html", "/try.css", "/try.js"):
        answer = http.get(path)
        assert answer.status_code == 200
        assert "//" not in re.sub(r"^\s*// .*$", "", answer.text, flags=re.MULTILINE).replace("</", "")


@pytest.mark.parametrize("path", ["/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "//etc/passwd"])
def test_no_other_file_is_served(gateway: Any, path: str) -> None:
    with httpx.Client() as client:
        request = client.build_request("GET", gateway.url)
        request.url = request.url.copy_with(raw_path=path.encode())
        assert client.send(request).status_code == 404
