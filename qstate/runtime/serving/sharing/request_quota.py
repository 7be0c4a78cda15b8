"""The quota of requests: what share of a processor the peers of a query port may use, and who uses too much.

Rules of this module: it knows peers by name, the processor time that they have used, and the clock. It must not know
connections or threads, nor what the time was used for: its endpoint does.

Each peer owes the time that it has used. The quota pays: so many seconds each second, to all peers that owe something
in equal parts. One number, the level, says what each of them has been paid, and a peer is done at the level of its last
charge plus what it owed then. So a charge takes as long with thousands of peers as with one.

A peer that owes more than `BURST_S` is over the quota, until it owes `PAUSE_S` less than that. So all peers together
use no more than the quota in the long run, however many they are, and one that needs less than its part does not wait
for those that need more.

While a quota that was lifted does not apply, no peer waits, and none owes more than a burst. When it applies again, a
peer that went on asking for more than its part has had its burst.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

__all__ = ["BURST_S", "IDLE_S", "LEAST_S", "PAUSE_S", "RequestQuota"]

#: What a peer may owe. So short bursts do not wait.
BURST_S = 0.02
#: What is paid in a wait, at least: else the wait would be for less than it costs to begin and end one.
PAUSE_S = 0.002
#: So long it applies after it was lifted: the end of an epoch and the begin of the next one take time, too.
IDLE_S = 0.1
#: Who owes less owes nothing: it is what rounding leaves.
LEAST_S = 1e-9
#: The time of further peers is not counted while so many owe something.
MOST_PEERS = 4096


class RequestQuota:
    """`share` is that of one processor: 0.5 is half of it. 0 is no quota. Any thread may call any method.

    It applies while `lift` was not called more often than `apply`, and `IDLE_S` longer.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share = share
        #: At 1 and above it applies.
        self._applied = 1
        self._lifted_at = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        #: The seconds that were paid to a peer that has owed something all the time.
        self._level = 0.0
        #: Peer -> the level at which it owes nothing more; only those that owe something.
        self._ends: dict[str, float] = {}
        #: A heap with each of these peers once, by this level or an earlier, lower one.
        self._order: list[tuple[float, str]] = []
        #: Those over the quota, and perhaps some that are no more.
        self._over: set[str] = set()
        self._paid_at = clock()

    def charge(self, peer: str, seconds: float) -> None:
        """The peer has used so many seconds of a processor."""
        if not self._share:
            return
        with self._lock:
            self._pay()
            before = self._owed(peer)
            owed = before + seconds
            if not self._applies():
                owed = max(before, min(owed, BURST_S))
            if peer not in self._ends:
                if len(self._ends) == MOST_PEERS:
                    return
                heappush(self._order, (self._level + owed, peer))
            self._ends[peer] = self._level + owed
            if before + seconds > BURST_S:
                self._over.add(peer)

    def wait_s(self, peer: str) -> float:
        """For about how long the peer must wait; 0 when it is not over the quota."""
        if peer not in self._over or not self._applies():
            return 0.0
        with self._lock:
            self._pay()
            over = self._owed(peer) - (BURST_S - PAUSE_S)
            if over <= 0.0:
                self._over.discard(peer)
                return 0.0
            return over * len(self._ends) / self._share

    def lift(self) -> None:
        """Something that the quota protects needs no protection any more."""
        with self._lock:
            self._applied -= 1
            self._lifted_at = self._clock()

    def apply(self) -> None:
        """End `lift`, or begin something that the quota protects."""
        with self._lock:
            if not self._applies():
                most = self._level + BURST_S
                self._ends = {peer: min(end, most) for peer, end in self._ends.items()}
                self._order = [(end, peer) for peer, end in self._ends.items()]
                heapify(self._order)
            self._applied += 1

    def _applies(self) -> bool:
        return self._applied > 0 or self._clock() < self._lifted_at + IDLE_S

    def _owed(self, peer: str) -> float:
        return self._ends.get(peer, self._level) - self._level

    def _pay(self) -> None:
        now = self._clock()
        left, self._paid_at = (now - self._paid_at) * self._share, now
        while self._order:
            level, peer = self._order[0]
            due = (level - self._level) * len(self._ends)
            if due - left > LEAST_S:
                self._level += left / len(self._ends)
                return
            if self._ends[peer] > level:
                heapreplace(self._order, (self._ends[peer], peer))
                continue
            left, self._level = max(0.0, left - due), level
            heappop(self._order)
            del self._ends[peer]
