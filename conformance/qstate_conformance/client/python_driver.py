"""The driver of qstate's synchronous client: `python -m qstate_conformance.client.python_driver`.

Rules of this module: the line protocol and the client's public interface. Each operation has a thread, as the callers
of a program would have.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import qstate
from qstate.client import QueryableStateClient
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
    reported,
    selection,
    tls_of,
)

__all__ = ["PythonDriver", "main"]

#: More than a law has in flight.
THREADS = 64


class PythonDriver:
    """The clients that were opened, and the operations on them."""

    make_client: type[QueryableStateClient] = QueryableStateClient

    def __init__(self) -> None:
        self._clients: dict[int, QueryableStateClient] = {}
        self._numbers = count(1)
        self._views = Views()

    def hello(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return described(f"qstate {qstate.__version__}, synchronous")

    def open(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        self._clients[number] = self.make_client(
            fields["host"],
            fields["port"],
            direct=fields["direct"],
            timeout_s=fields["timeout_ms"] / 1000,
            token=key_of(fields["token"]),
            serializers=[ReversedText()],
            tls=tls_of(fields),
        )
        return {"client": number}

    def get(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        view = client.get(fields["job"], fields["state"], key_of(fields["key"]), **options(fields))
        return self._views.entry(view, fields.get("keep", False))

    def get_many(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        keys = [key_of(key) for key in fields["keys"]]
        found = client.get_many(fields["job"], fields["state"], keys, **options(fields))
        return {"results": [self._views.entry(found[key]) for key in keys]}

    def scan(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        chosen, show = selection(fields), fields.get("show", "values")
        if show == "count":
            return {"entries": [], "count": client.count(fields["job"], fields["state"], **chosen)}
        found = Scanned()
        with client.scan(fields["job"], fields["state"], values=show == "values", **chosen) as entries:
            while not found.failed:
                try:
                    found.add(*next(entries))
                except StopIteration:
                    break
                except Exception as exc:
                    found.fail(exc)
        return found.answer()

    def get_part(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client = self._clients[fields["client"]]
        method, given = part_of(fields)
        found = getattr(client, method)(fields["job"], fields["state"], key_of(fields["key"]), **given)
        return self._views.part(found)

    def subscribe(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client, found = self._clients[fields["client"]], Followed(fields)
        with client.subscribe(fields["job"], fields["state"], **following(fields)) as subscription:
            while not found.over:
                try:
                    found.add(subscription.next_batch(found.left_s))
                except Exception as exc:
                    found.fail(exc)
        return found.answer()

    def describe(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        client, job, timeout_s = self._clients[fields["client"]], fields["job"], fields["timeout_ms"] / 1000
        if job is None:
            return {"jobs": client.jobs(timeout_s=timeout_s)}
        return {"states": [json_of(state) for state in client.states(job, timeout_s=timeout_s)]}

    def mutate(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return self._views.mutate(fields["view"])

    def close(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        self._clients[fields["client"]].close()
        return {}

    def run(self) -> None:
        """Answer the lines of stdin until it ends."""
        writing = threading.Lock()

        def work(line: str) -> None:
            request = json.loads(line)
            try:
                told = answer(request["id"], getattr(self, request["op"])(request))
            except Exception as exc:
                told = failure(request["id"], exc)
            with writing:
                print(told, flush=True)

        with ThreadPoolExecutor(THREADS) as pool:
            for line in sys.stdin:
                pool.submit(work, line)
            for client in self._clients.values():
                client.close()


def json_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state's description as plain JSON: its names are text, so it needs no tag."""
    return {name: reported(value) for name, value in state.items()}


def main() -> None:
    """Run the driver."""
    PythonDriver().run()


if __name__ == "__main__":
    main()
