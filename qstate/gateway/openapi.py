"""The OpenAPI document of the gateway: what there is to ask, and what comes back.

Rules of this module: values only. docs/reference/rest.md is made from it, and a test compares its paths with the routes
of the application and its parameters with those that the application takes.
"""

from __future__ import annotations

from typing import Any

from qstate import __version__
from qstate.errors import FailureCode

__all__ = ["document"]

_ANY: dict[str, Any] = {"description": "any JSON value"}
_KEY = {
    "description": "the value of the key's column, an array of them for several columns: text as it is; a whole "
    "number, as text beyond ±(2^53 - 1); binary in hexadecimal; true or false; 2020-12-31; "
    "2020-12-31T23:59:59+00:00; 12.50 as text. Text is accepted for every type"
}
_NAMESPACE = {
    "description": 'null, a JSON scalar or an array of them; {"date": ...}, {"timestamp": ...}, {"decimal": ...} and '
    '{"binary": HEX} stand for what JSON lacks'
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": ["number", "null"], "description": description}


def _whole(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


_PROBLEM = _object(
    type=_text("a URN that stands for the code"),
    title=_text("what the code means"),
    status=_whole("the HTTP status"),
    detail=_text("what happened, and what to do"),
    code={"type": "string", "enum": [code.name for code in FailureCode]},
    number=_whole("the number of the code in the wire protocol"),
    retry={"type": "string", "enum": ["fatal", "retry_here", "look_up_again"]},
    details={"type": "object", "description": "the facts that came with the code"},
)
_ERROR = {"$ref": "#/components/schemas/Problem"}
_FIGURES: dict[str, Any] = {
    "type": ["object", "null"],
    "description": "null without --job-metrics of the job, and before there are two readings of it",
    "properties": {
        "at": _number("when they were read, in seconds since 1970"),
        "interval_s": _number("the seconds between the two readings, over which rates are measured"),
        "rows_in_per_s": _number("rows of sealed epochs"),
        "rows_out_per_s": _number("rows that they emitted"),
        "reads_per_s": _number("requests to the state servers"),
        "epoch": _number("the epoch that all subtasks have sealed"),
        "newest_epoch": _number("the epoch that the first subtask has sealed"),
        "epoch_s": _number("the mean length of an epoch, of the slowest subtask"),
        "commit_s": _number("the part of it after the last row"),
        "watermark": _number("the lowest watermark, in seconds since 1970"),
        "lag_s": _number("the time since the watermark"),
        "state_keys": _number("keys with a value, where the backend counts them"),
        "state_entries": _number("entries, where the backend estimates them"),
        "state_bytes": _number("bytes, where the backend estimates them"),
        "timers": _number("timers, where the backend counts them"),
        "snapshot_at": _number("when the oldest of the subtasks' newest snapshots was ready, in seconds since 1970"),
        "snapshot_age_s": _number("the time since then"),
        "subtasks": _whole("how many subtasks there are"),
        "restarts": _whole("how often processes were replaced"),
        "abandoned": _whole("attempts of epochs that failed"),
        "silent": _list(_text("a process that does not answer")),
    },
}
_SUBTASK = _object(
    operator=_text("the operator"),
    subtask=_whole("its index"),
    process=_text("the task manager"),
    epoch=_whole("the epoch sealed last"),
    **{
        name: _FIGURES["properties"][name]
        for name in ("rows_in_per_s", "rows_out_per_s", "epoch_s", "commit_s", "state_keys", "state_entries")
    },
    **{name: _FIGURES["properties"][name] for name in ("state_bytes", "timers", "watermark", "snapshot_at")},
    abandoned=_FIGURES["properties"]["abandoned"],
)
_SERVING = _object(
    process=_text("the process"),
    endpoint={"type": "string", "enum": ["server", "proxy"]},
    connections=_whole("open connections"),
    requests_per_s=_number("requests"),
    keys_per_s=_number("keys asked for"),
    failures_per_s=_number("failures"),
    p99_s=_number("the 99th percentile of the time to answer, in seconds"),
)
_STATE: dict[str, Any] = _object(
    name=_text("the queryable name"),
    state=_text("the name of the descriptor, by which metrics name the state"),
    kind={"type": "string", "enum": ["value", "list", "map", "reducing", "aggregating"]},
    key_types=_list(_text("the type of a key column")),
    namespace_types={"type": ["array", "null"], "items": _text("the type of a column"), "description": "null: any"},
    value_type=_text("the declared type"),
    map_key_type=_text("the declared type of a map's keys"),
    serializer=_text("how values are stored"),
    serializer_version=_whole("its version"),
    fingerprint=_text("stands for this description"),
    capabilities=_list(_text("what the backend promises")),
    keys={"type": ["integer", "null"], "description": "keys as of the newest committed epoch, where they are counted"},
)
_OWNER = _object(
    start=_whole("the first key group"),
    stop=_whole("one past the last"),
    host=_text("the owner"),
    port=_whole("its port"),
)
_CHANGE = _object(
    change={"type": "string", "enum": ["put", "delete", "add", "put_entry", "remove_entry"]},
    key=_KEY,
    namespace=_NAMESPACE,
    map_key={"description": "the key of the map's entry, for put_entry and remove_entry: in the form of a namespace"},
    value={"description": "the value that was put, the elements that were added; missing for deletions"},
    error=_ERROR,
)
_RESULT = _object(key=_KEY, found={"type": "boolean"}, epoch=_whole("the epoch of the value"), value=_ANY, error=_ERROR)
_ENTRY = _object(key=_KEY, namespace=_NAMESPACE, epoch=_whole("its epoch"), value=_ANY, error=_ERROR)


def _parameter(name: str, description: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema or {"type": "string"}, **more}


_SEVERAL: dict[str, Any] = {"schema": {"type": "array", "items": {"type": "string"}}, "explode": True}
_TIMEOUT = _parameter("timeout", "seconds, 30 at most", {"type": "number", "default": 5})
_PLACES = {
    name: {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
    for name, text in {"job": "the job", "state": "the queryable name of the state"}.items()
}
_NAMES = {
    "key": _parameter("key", "the key: one parameter for each key column, in their order", **_SEVERAL),
    "keys": _parameter("keys", "a JSON array of keys, 1,000 at most"),
    "begins": _parameter("begins", "keys whose first column begins with this text, or binary in hexadecimal"),
    "column": _parameter("column", "keys whose first columns are these: one parameter for each", **_SEVERAL),
    "namespace": _parameter(
        "namespace",
        "as JSON, or as text that is no JSON. If namespaces are text: all but null and text in quotes is as it is",
    ),
    "isolation": _parameter(
        "isolation",
        "`live` sees the running epoch, `committed` does not",
        {"type": "string", "enum": ["live", "committed"], "default": "live"},
    ),
    "min_epoch": _parameter("min_epoch", "an answer of this epoch or a later one", {"type": "integer"}),
    "max_staleness": _parameter(
        "max_staleness", "an answer with all that was committed longer ago than so many seconds", {"type": "number"}
    ),
    "wait": _parameter("wait", "how many seconds to try again after a failure that may pass", {"type": "number"}),
    "limit": _parameter("limit", "entries of a page, 1,000 at most", {"type": "integer", "default": 100}),
    "values": _parameter("values", "`false`: keys without values", {"type": "boolean", "default": True}),
    "cursor": _parameter("cursor", "that of the page before"),
    "from_epoch": _parameter("from_epoch", "begin with the changes of this epoch", {"type": "integer"}),
    "after": _parameter("after", "the id of the last event that was seen; or the header Last-Event-ID"),
}
_SELECTION = ("begins", "column", "namespace", "isolation")
_DEMANDS = ("namespace", "isolation", "min_epoch", "max_staleness", "wait")
_BATCH = _object(
    keys={"type": "array", "items": _KEY, "minItems": 1, "maxItems": 1000},
    namespace=_NAMESPACE,
    **{name: _NAMES[name]["schema"] for name in ("isolation", "min_epoch", "max_staleness", "wait")},
    timeout=_TIMEOUT["schema"],
)
_EVENTS = """Server-sent events. Without `key`, `keys`, `begins` and `column`: all keys. First comes what is committed
(`snapshot`), unless `after`, `Last-Event-ID` or `from_epoch` says where to begin: then exactly what came after it.

| event | data |
|---|---|
| `snapshot` | `{"epoch": 11, "complete": 11, "changes": [Change, ...]}`: values as of an epoch |
| `changes` | the same for committed changes |
| `progress` | `{"epoch": 12, "complete": 12}`: nothing has changed |
| `waiting` | a problem: the job does not answer. The stream goes on when it does, with `progress` if need be |
| `error` | a problem; the stream ends |

Up to the epoch `complete` the changes of all key groups have come. An event has an `id` if the stream can be resumed
after it: a snapshot and a large epoch come in parts, of which the last has the id.

A WebSocket at the same address gets each event as a text, `{"event": ..., "id": ..., "data": ...}`."""


def document() -> dict[str, Any]:
    """The document, as JSON types."""
    state, job = "/v1/jobs/{job}/states/{state}", "/v1/jobs/{job}"
    described = {"allOf": [_ref("State"), _object(max_parallelism=_whole("key groups"), owners=_list(_OWNER))]}
    details = _object(
        name=_text("the job"), figures=_FIGURES, subtasks=_list(_SUBTASK), serving=_list(_SERVING), standby=_list(_ANY)
    )
    value = _object(
        key=_KEY, namespace=_NAMESPACE, epoch=_whole("its epoch"), isolation=_text("as asked for"), value=_ANY
    )
    named = _object(name=_text("the job"), figures=_ref("Figures"))
    paths = {
        "/v1/jobs": _get("The jobs", "Jobs that the caller may see.", (), _object(jobs=_list(named))),
        job: _get("A job and its figures", "What `qstate top` shows.", (), details),
        f"{job}/states": _get("The states of a job", "", (), _object(states=_list(_ref("State")))),
        state: _get("A state and its owners", "Key groups in a gap have no owner now.", (), described),
        f"{state}/value": _get(
            "The value of a key",
            "The answer has an ETag of its epoch and content; `If-None-Match` gives 304 if it is still the same.",
            ("key", *_DEMANDS),
            value,
        ),
        f"{state}/values": _post(_object(results=_list(_ref("Result")))),
        f"{state}/entries": _get(
            "Keys and values, page by page",
            "By key group, namespace and key. `cursor` is null at the end; before it, a page may be short.",
            (*_SELECTION, "limit", "values", "cursor"),
            _object(entries=_list(_ref("Entry")), cursor={"type": ["string", "null"]}),
        ),
        f"{state}/count": _get("How many keys", "Reads all of them.", _SELECTION, _object(count=_whole("keys"))),
        f"{state}/namespaces": _get(
            "The namespaces of a key", "", ("key", "isolation"), _object(namespaces=_list(_NAMESPACE))
        ),
        f"{state}/changes": _changes(),
    }
    schemas = {
        "Problem": _PROBLEM, "Figures": _FIGURES, "State": _STATE, "Result": _RESULT, "Entry": _ENTRY, "Change": _CHANGE
    }  # fmt: skip
    for path, methods in paths.items():
        for operation in methods.values():
            operation["parameters"][:0] = [place for name, place in _PLACES.items() if f"{{{name}}}" in path]
    paths[f"{state}/value"]["get"]["responses"]["304"] = {"description": "the value is that of `If-None-Match`"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "qstate gateway", "version": __version__, "summary": "The state of running jobs over HTTP"},
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _get(summary: str, description: str, names: tuple[str, ...], schema: dict[str, Any]) -> dict[str, Any]:
    return {"get": _operation(summary, description, names, {"application/json": {"schema": schema}})}


def _post(schema: dict[str, Any]) -> dict[str, Any]:
    text = "1 to 1,000 keys, in a body of at most 1 MiB. A key that failed has an `error` in its result.\n"
    text += "Beyond 16 MiB of answers, keys fail with `TOO_LARGE`."
    made = _operation("The values of many keys", text, (), {"application/json": {"schema": schema}})
    body = {"required": True, "content": {"application/json": {"schema": {**_BATCH, "required": ["keys"]}}}}
    return {"post": {**made, "parameters": [], "requestBody": body}}


def _changes() -> dict[str, Any]:
    names = ("key", "keys", "begins", "column", "namespace", "from_epoch", "after")
    return {"get": _operation("The changes of keys", _EVENTS, names, {"text/event-stream": {"schema": _ref("Change")}})}


def _operation(summary: str, description: str, names: tuple[str, ...], content: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "description": description,
        "parameters": [*(_NAMES[name] for name in names), _TIMEOUT],
        "responses": {
            "200": {"description": "the answer", "content": content},
            "default": {"description": "a failure", "content": {"application/problem+json": {"schema": _ERROR}}},
        },
    }
