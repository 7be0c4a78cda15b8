"""Queries the demo's job while it runs, through the real client, as any program outside the job could.

Rules of this module: it asks for a handful of keys and turns the answers into text. A state or key that is not
there yet is part of the picture, not an error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from qstate.client import QueryableStateClient
from qstate.errors import QueryError
from qstate.views import ReadOnlyState

__all__ = ["Probe", "Reading"]

AIRPORTS = ("EWR", "JFK", "LGA")
#: Aircraft that fly all year, so that there is something to see from the first epochs on.
AIRCRAFT = ("N725MQ", "N711MQ", "N328AA")
TIMEOUT_S = 2.0
MOST_VISITED = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """One line of what is in the state now."""

    state: str
    key: str
    text: str


class Probe:
    """Queries repeatedly; counts the keys and measures the time."""

    def __init__(self, client: QueryableStateClient, job: str) -> None:
        self._client = client
        self._job = job
        self.keys = 0
        self._requests = 0
        self._took_s = 0.0

    @property
    def mean_ms(self) -> float:
        """Milliseconds per request so far, as the caller waits for it."""
        return 1000 * self._took_s / max(1, self._requests)

    def look(self, day: str) -> list[Reading]:
        """The readings now; `day` is the day that the weather stream has reached, or empty."""
        readings = self._ask("lastTemperature", AIRPORTS)
        readings += self._ask("maxTemperature", AIRPORTS, day) if day else []
        for state in ("lastFlight", "visits", "lastDelays", "totalDistance", "meanDelay"):
            readings += self._ask(state, AIRCRAFT)
        return readings

    def _ask(self, state: str, keys: Sequence[str], namespace: str | None = None) -> list[Reading]:
        label = state if namespace is None else f"{state} {namespace}"
        begun = time.perf_counter()
        try:
            views = self._client.get_many(self._job, state, keys, namespace, timeout_s=TIMEOUT_S)
        except QueryError as exc:
            return [Reading(label, "", f"({type(exc).__name__})")]
        self._took_s += time.perf_counter() - begun
        self._requests += 1
        self.keys += len(keys)
        return [Reading(label, str(key), _shown(state, view)) for key, view in views.items()]


def _shown(state: str, view: ReadOnlyState | None) -> str:
    if view is None:
        return "-"
    value = view.contents()
    if state == "lastFlight":
        late = "never departed" if value["delay"] is None else f"{value['delay']:+d} min"
        return f"{value['carrier']} {value['origin']} to {value['dest']}, {late}"
    if state == "visits":
        most = sorted(value.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_VISITED]
        return f"{len(value)} places, " + ", ".join(f"{place} {visits}" for place, visits in most)
    if state == "lastDelays":
        return " ".join(map(str, value))
    if state == "totalDistance":
        return f"{value:,} miles"
    return f"{value:.1f} " + ("min" if state == "meanDelay" else "°F")
