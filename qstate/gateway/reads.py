"""The answers to requests about jobs, states and keys.

Rules of this module: requests in, calls of the caller's client, JSON out. Every answer is bounded: in keys, in bytes
and in time.
"""

from __future__ import annotations

import asyncio
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import json
from starlette.requests import Request
from starlette.responses import Response
from xxhash import xxh64_hexdigest

from qstate.client import AsyncScanResults, ScannedEntry
from qstate.errors import ConfigError, DeadlineExceeded, KeyNotFound, QStateError, QueryError, TooLarge
from qstate.gateway.figures import JobFigures
from qstate.gateway.parameters import BatchBody, Parameters, body_of, name_of, refuse_parameters, token_of
from qstate.gateway.problems import problem_of
from qstate.gateway.upstream import Upstream
from qstate.gateway.value_json import value_json
from qstate.keys import Key
from qstate.values.text_forms import key_form, key_of, namespace_form, printable

__all__ = ["Reads"]

JSON = "application/json"
NO_STORE = {"Cache-Control": "no-store"}
DEFAULT_LIMIT, MOST_ENTRIES = 100, 1000
#: A page ends after the entry with which it has so many bytes.
MOST_PAGE_BYTES = 4 << 20
#: A batch reads so many keys at a time, until its answer has so many bytes.
PART_KEYS, MOST_ANSWER_BYTES = 100, 16 << 20
DEMANDS = ("namespace", "isolation", "min_epoch", "max_staleness", "wait")
SELECTION = ("begins", "column", "namespace", "isolation")


class Reads:
    """Endpoints of Starlette. Each raises what `problems` turns into an answer."""

    def __init__(self, upstream: Upstream, figures: JobFigures) -> None:
        self._upstream = upstream
        self._figures = figures

    async def jobs(self, request: Request) -> Response:
        """The jobs that the caller may see."""
        timeout_s = Parameters(request.query_params).timeout_s
        async with self._upstream.caller(token_of(request)) as caller:
            names = sorted(await caller.client.jobs(timeout_s=timeout_s))
        return _answer({"jobs": [{"name": name, "figures": self._figures.summary(name)} for name in names]})

    async def job(self, request: Request) -> Response:
        """A job's figures."""
        job = name_of(request, "job")
        timeout_s = Parameters(request.query_params).timeout_s
        async with self._upstream.caller(token_of(request)) as caller:
            await caller.client.states(job, timeout_s=timeout_s)  # raises what the caller must get
        return _answer({"name": job, "figures": self._figures.summary(job), **self._figures.details(job)})

    async def states(self, request: Request) -> Response:
        """The states of a job that the caller may see."""
        job = name_of(request, "job")
        timeout_s = Parameters(request.query_params).timeout_s
        async with self._upstream.caller(token_of(request)) as caller:
            states = await caller.client.states(job, timeout_s=timeout_s)
        return _answer({"states": [self._described(job, state) for state in sorted(states, key=_name)]})

    async def state(self, request: Request) -> Response:
        """A state, and who owns its key groups."""
        job, state = name_of(request, "job"), name_of(request, "state")
        timeout_s = Parameters(request.query_params).timeout_s
        async with self._upstream.caller(token_of(request)) as caller:
            found = await caller.client.locate(job, state, timeout_s=timeout_s)
        owners = [
            {"start": one.key_groups.start, "stop": one.key_groups.stop, "host": one.host, "port": one.port}
            for one in found.owners
        ]
        place = {"max_parallelism": found.max_parallelism, "owners": owners}
        return _answer(self._described(job, found.state) | place)

    def _described(self, job: str, state: Mapping[str, Any]) -> dict[str, Any]:
        return {**printable(state), "keys": self._figures.keys(job, state.get("state"))}

    async def value(self, request: Request) -> Response:
        """The value of one key, with an ETag."""
        job, state = name_of(request, "job"), name_of(request, "state")
        parameters = Parameters(request.query_params, "key", *DEMANDS)
        async with self._upstream.caller(token_of(request)) as caller:
            types = await caller.types(job, state, parameters.timeout_s)
            key, demands = parameters.key(types), parameters.demands(types)
            view = await caller.client.get(job, state, key, **demands)
        if view is None:
            raise KeyNotFound(job=job, state=state, key=repr(key))
        body = {"key": key_form(key), "namespace": namespace_form(demands["namespace"]), "epoch": view.epoch}
        data = json.encode({**body, "isolation": demands["isolation"], "value": value_json(view.contents)})
        # A live value changes within an epoch, so the epoch alone does not say that it is the same.
        tag = f'W/"{view.epoch}-{xxh64_hexdigest(data)}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
        if _has(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=JSON)

    async def values(self, request: Request) -> Response:
        """The values of many keys. A key that failed has its problem in the place of a value."""
        job, state = name_of(request, "job"), name_of(request, "state")
        refuse_parameters(request.query_params)
        body = await body_of(request, BatchBody)
        async with self._upstream.caller(token_of(request)) as caller:
            types = await caller.types(job, state, body.timeout_s)
            keys, demands = [key_of(key, types.keys) for key in body.keys], body.demands(types)
            results = await _results(partial(caller.client.get_many, job, state, return_errors=True), keys, demands)
        return Response(b'{"results":[%b]}' % b",".join(results), headers=NO_STORE, media_type=JSON)

    async def entries(self, request: Request) -> Response:
        """A page of the keys of a state, and the cursor of the next one."""
        parameters = Parameters(request.query_params, *SELECTION, "limit", "values", "cursor")
        limit = parameters.number("limit")
        limit = DEFAULT_LIMIT if limit is None else limit
        if not 1 <= limit <= MOST_ENTRIES:
            raise ConfigError(f"limit must be 1 to {MOST_ENTRIES}, got {limit}")
        values = parameters.flag("values", True)
        options: dict[str, Any] = {"cursor": _cursor_of(parameters.text("cursor")), "values": values}
        job, state = name_of(request, "job"), name_of(request, "state")
        async with self._upstream.caller(token_of(request)) as caller:
            types = await caller.types(job, state, parameters.timeout_s)
            options |= parameters.selection(types)
            scan = caller.client.scan(job, state, parameters.prefix(types), limit=limit, **options)
            begin = scan.cursor
            async with scan:
                entries, over = await _page(scan, limit, parameters.timeout_s, values=values)
        if not (entries or over) and scan.cursor == begin:
            raise DeadlineExceeded(seconds=parameters.timeout_s)
        cursor = None if over else urlsafe_b64encode(scan.cursor).decode()
        body = b'{"entries":[%b],"cursor":%b}' % (b",".join(entries), json.encode(cursor))
        return Response(body, headers=NO_STORE, media_type=JSON)

    async def count(self, request: Request) -> Response:
        """How many keys a state has."""
        parameters = Parameters(request.query_params, *SELECTION)
        job, state = name_of(request, "job"), name_of(request, "state")
        async with self._upstream.caller(token_of(request)) as caller:
            types = await caller.types(job, state, parameters.timeout_s)
            counting = caller.client.count(job, state, parameters.prefix(types), **parameters.selection(types))
            try:
                found = await asyncio.wait_for(counting, parameters.timeout_s)
            except asyncio.TimeoutError:
                raise DeadlineExceeded(seconds=parameters.timeout_s) from None
        return _answer({"count": found})

    async def namespaces(self, request: Request) -> Response:
        """The namespaces in which a key has a value."""
        parameters = Parameters(request.query_params, "key", "isolation")
        job, state = name_of(request, "job"), name_of(request, "state")
        async with self._upstream.caller(token_of(request)) as caller:
            types = await caller.types(job, state, parameters.timeout_s)
            selection = parameters.selection(types)
            found = await caller.client.namespaces(job, state, parameters.key(types), **selection)
        return _answer({"namespaces": [namespace_form(namespace) for namespace in found]})


def _answer(body: Any) -> Response:
    return Response(json.encode(body), headers=NO_STORE, media_type=JSON)


def _name(state: Mapping[str, Any]) -> str:
    return str(state["name"])


def _has(header: str, tag: str) -> bool:
    """Whether an If-None-Match has the tag, weak or not."""
    plain = tag.removeprefix("W/")
    return header.strip() == "*" or plain in (one.strip().removeprefix("W/") for one in header.split(","))


async def _results(
    get_many: Callable[..., Awaitable[dict[Key, Any]]], keys: Sequence[Key], demands: dict[str, Any]
) -> list[bytes]:
    """The result of each key as JSON. Values are read a part at a time, and no more when the answer is large."""
    ends_at = time.monotonic() + demands["timeout_s"]
    full = TooLarge(field="answer", limit=MOST_ANSWER_BYTES)
    results: list[bytes] = []
    size = 0
    for at in range(0, len(keys), PART_KEYS):
        part = keys[at : at + PART_KEYS]
        views: dict[Key, Any] = {}
        if size <= MOST_ANSWER_BYTES:
            views = await get_many(part, **demands | {"timeout_s": max(0.001, ends_at - time.monotonic())})
        for key in part:
            results.append(json.encode(_result(key, views[key] if size <= MOST_ANSWER_BYTES else full)))
            size += len(results[-1])
    return results


def _result(key: Key, view: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"key": key_form(key)}
    if view is None:
        return form | {"found": False}
    if isinstance(view, QueryError):
        return form | {"error": problem_of(view)}
    return form | {"found": True, "epoch": view.epoch, **_value(view)}


def _value(view: Any) -> dict[str, Any]:
    """The value of a view; the problem of one that cannot be read."""
    try:
        return {"value": value_json(view.contents)}
    except QStateError as exc:
        return {"error": problem_of(exc)}


async def _page(scan: AsyncScanResults[Any], limit: int, timeout_s: float, *, values: bool) -> tuple[list[bytes], bool]:
    """The next entries of a scan as JSON, and whether these were all. Fewer when the time is over."""
    entries: list[bytes] = []
    size = 0
    ends_at = time.monotonic() + timeout_s
    while len(entries) < limit and size < MOST_PAGE_BYTES:
        try:
            entry = await asyncio.wait_for(anext(scan), ends_at - time.monotonic())
        except StopAsyncIteration:
            return entries, True
        except asyncio.TimeoutError:
            break
        except QueryError as exc:
            # A scan whose epoch is unknown has no page yet; otherwise it is the failure of one entry.
            if scan.epoch is None or "key" not in exc.details:
                raise
            entries.append(json.encode({"key": None, "error": problem_of(exc)}))
            continue
        entries.append(json.encode(_entry(entry, scan.epoch, values=values)))
        size += len(entries[-1])
    return entries, False


def _entry(entry: ScannedEntry[Any], epoch: int | None, *, values: bool) -> dict[str, Any]:
    form = {"key": key_form(entry.key), "namespace": namespace_form(entry.namespace), "epoch": epoch}
    return form | _value(entry.view) if values else form


def _cursor_of(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return urlsafe_b64decode(text.encode())
    except ValueError:
        raise ConfigError(f"cursor must be that of an earlier page, got {text!r:.80}") from None
