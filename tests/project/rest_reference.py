"""Writes docs/reference/rest.md from the gateway's OpenAPI document: run it from the root of the checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qstate.gateway.openapi import document

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rest.md"
HEAD = """# The REST API

<!-- Made by tests/project/rest_reference.py from qstate.gateway.openapi; a test keeps the two in step. -->

What `qstate gateway` answers; [Read state over HTTP](../how-to/gateway.md) shows how to use it. A running gateway has
the same as an OpenAPI document at `/openapi.json`, a page to try it at `/try.html`, `/healthz`, and its own metrics in
Prometheus' form at `/metrics`.

A name in a path is percent-encoded, with `/` as `%2F`. No job and no queryable state is called `.` or `..`, which
browsers take for steps in a path. A parameter that is not listed here is refused. The token of the
query port goes into the header `Authorization: Bearer TOKEN`; a WebSocket of a browser, which can send no header, gives
the subprotocols `qstate.v1` and `bearer.` with the token in URL-safe base 64.

A failure is a problem of [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457), `application/problem+json`:
[Problem](#problem). [Failure codes](failures.md) has the status of each code. A code that may pass is 503, with
`Retry-After`.

A value is JSON: bytes in base 64, dates and times in ISO 8601, decimals and UUIDs as text, and NaN and the infinities
as the texts `NaN`, `Infinity` and `-Infinity`. A map whose keys are all text is an object. Any other map is an array
of pairs, `[[key, value], ...]`, with the keys in the form of namespaces: so 1 and `"1"` are two entries.

A namespace is JSON: null for the void one, a scalar, or an array of them for several columns, where `{"date": ...}`,
`{"timestamp": ...}`, `{"decimal": ...}` and `{"binary": HEX}` stand for what JSON lacks. If the state says which types
its namespaces have (`namespace_types`), text is accepted for every type. In the parameter `namespace`, text that is no
JSON is the namespace itself, and of a state whose namespaces are text, so is all but `null` and text in quotes:
`namespace=123` and `namespace="123"` are both the text 123. If the state does not say it, `namespace=123` is the
number.
"""


def render() -> str:
    """The page."""
    found = document()
    lines = [HEAD, "## Requests", ""]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            lines += [f"### {operation['summary']}", "", f"`{method.upper()} {path}`", ""]
            lines += [operation["description"], ""] if operation["description"] else []
            lines += _parameters(operation)
            lines += _body("The body", operation.get("requestBody", {}).get("content", {}))
            lines += _body("The answer", operation["responses"]["200"]["content"])
    lines += ["## Forms", ""]
    for name, schema in found["components"]["schemas"].items():
        lines += [f"### {name}", ""]
        lines += (
            [f"{schema['description'][0].upper()}{schema['description'][1:]}.", ""] if "description" in schema else []
        )
        lines += [*_table(schema), ""]
    return "\n".join(lines).rstrip() + "\n"


def _parameters(operation: dict[str, Any]) -> Iterator[str]:
    parameters = [one for one in operation["parameters"] if one["in"] == "query"]
    if parameters:
        yield from ("| parameter | type | |", "|---|---|---|")
        for one in parameters:
            default = one["schema"].get("default")
            text = one["description"] if default is None else f"{one['description']} (default: {_plain(default)})"
            yield f"| `{one['name']}` | {_type(one['schema'])} | {text} |"
        yield ""


def _body(what: str, content: dict[str, Any]) -> Iterator[str]:
    for media, found in content.items():
        schema = found["schema"]
        parts = schema.get("allOf", [schema])
        names = [_type(part) for part in parts if "$ref" in part]
        more = " with" if names and len(parts) > 1 else ""
        yield f"{what}, `{media}`: {', '.join(names)}{more}" if names else f"{what}, `{media}`:"
        yield ""
        for part in parts:
            if "$ref" not in part:
                yield from _table(part)
                yield ""


def _table(schema: dict[str, Any]) -> Iterator[str]:
    yield from ("| field | type | |", "|---|---|---|")
    for name, of in schema["properties"].items():
        yield f"| `{name}` | {_type(of)} | {of.get('description', '')} |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kinds = schema.get("type", "any")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    named = [f"array of {_type(schema['items'])}" if kind == "array" else kind for kind in kinds]
    fields = "".join(f", `{name}`" for name in schema.get("properties", {}))
    return " or ".join(named) + (f":{fields[1:]}" if fields and "at" not in schema["properties"] else "")


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(render())
