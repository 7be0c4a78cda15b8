"""The driver of qstate's asyncio client: `python -m qstate_conformance.client.python_async_driver`.

Rules of this module: the line protocol and the client's public interface. Each operation is a task; all of them share
one event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

import qstate
from qstate.client import AsyncQueryableStateClient
from qstate_conformance.client.python_driver import json_of
from qstate_conformance.client.python_lines import (
    Followed,
    ReversedText,
    Scanned,
    Views,
    answer,
    described,
    failure,
    following,
    key_of,
    options,
    part_of,
    selection,
    tls_of,
)

__all__ = ["PythonAsyncDriver", "main"]

#: The longest line that the suite sends is far below.
LONGEST_LINE = 16 * 1024 * 1024


class PythonAsyncDriver:
    """The clients that were opened, and the operations on them."""

    make_client: type[AsyncQueryableStateClient] = AsyncQueryableStateClient

    def __init__(self) -> None:
        self._clients: dict[int, AsyncQueryableStateClient] = {}
        self._numbers = count(1)
        self._views = Views()
        self._tasks: set[asyncio.Task[None]] = set()

    async def hello(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return described(f"qstate {qstate.__version__}, asyncio")

    async def open(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        self._clients[number] = await self.make_client.connect(
            fields["host"],
            fields["port"],
            direct=fields["direct"],
            timeout_s=fields["timeout_ms"] / 1000,
            token=key_of(fields["token"]),
            serializers=[ReversedText()],
            tls=tls_of(fields),
        )
        return {"client": number}

    async def get(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        view = await client.get(fields["job"], fields["state"], key_of(fields["key"]), **options(fields))
        return self._views.entry(view, fields.get("keep", False))

    async def get_many(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        keys = [key_of(key) for key in fields["keys"]]
        found = await client.get_many(fields["job"], fields["state"], keys, **options(fields))
        return {"results": [self._views.entry(found[key]) for key in keys]}

    async def scan(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        chosen, show = selection(fields), fields.get("show", "values")
        if show == "count":
            return {"entries": [], "count": await client.count(fields["job"], fields["state"], **chosen)}
        found = Scanned()
        async with client.scan(fields["job"], fields["state"], values=show == "values", **chosen) as entries:
            while not found.failed:
                try:
                    found.add(*await anext(entries))
                except StopAsyncIteration:
                    break
                except Exception as exc:
                    found.fail(exc)
        return found.answer()

    async def get_part(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        method, given = part_of(fields)
        found = await getattr(client, method)(fields["job"], fields["state"], key_of(fields["key"]), **given)
        return self._views.part(found)

    async def subscribe(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client, found = self._clients[fields["client"]], Followed(fields)
        async with client.subscribe(fields["job"], fields["state"], **following(fields)) as subscription:
            while not found.over:
                try:
                    found.add(await subscription.next_batch(found.left_s))
                except Exception as exc:
                    found.fail(exc)
        return found.answer()

    async def describe(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client, job, timeout_s = self._clients[fields["client"]], fields["job"], fields["timeout_ms"] / 1000
        if job is None:
            return {"jobs": await client.jobs(timeout_s=timeout_s)}
        return {"states": [json_of(state) for state in await client.states(job, timeout_s=timeout_s)]}

    async def mutate(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return self._views.mutate(fields["view"])

    async def close(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        await self._clients[fields["client"]].close()
        return {}

    async def run(self) -> None:
        """Answer the lines of stdin until it ends."""
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader(limit=LONGEST_LINE)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            task = loop.create_task(self._work(json.loads(line)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*(client.close() for client in self._clients.values()))
        await asyncio.gather(*self._tasks)

    async def _work(self, request: Mapping[str, Any]) -> None:
        try:
            told = answer(request["id"], await getattr(self, request["op"])(request))
        except Exception as exc:
            told = failure(request["id"], exc)
        print(told, flush=True)


def main() -> None:
    """Run the driver."""
    asyncio.run(PythonAsyncDriver().run())


if __name__ == "__main__":
    main()
