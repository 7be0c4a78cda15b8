"""The quota of requests: what share of a processor the peers of a query port may use, and who uses too much.

Rules of this module: it knows peers by name, the processor time that they have used, and the clock. It must not know
connections or threads, nor what the time was used for: its endpoint does.

Each peer owes the time that it has used. The quota pays: so many seconds each second, to all peers that owe something
in equal parts. A peer that owes more than `BURST_S` is over the quota, until it owes `PAUSE_S` less than that. So all
peers together use no more than the quota in the long run, however many they are, and one that needs less than its part
does not wait for those that need more.

A quota that was lifted `IDLE_S` ago lets nobody wait, and nobody owes more than a burst. When it applies again, a peer
that went on asking for more than its part has had its burst.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["BURST_S", "IDLE_S", "PAUSE_S", "RequestQuota"]

#: What a peer may owe. So short bursts do not wait.
BURST_S = 0.02
#: What is paid in a wait, at least: else the wait would be for less than it costs to begin and end one.
PAUSE_S = 0.002
#: So long it applies after it was lifted: the end of an epoch and the begin of the next one take time, too.
IDLE_S = 0.1
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
        #: Peer -> the seconds that it owes; only those that owe something.
        self._debts: dict[str, float] = {}
        #: Those over the quota, and perhaps some that are no more.
        self._over: set[str] = set()
        self._paid_at = clock()

    def charge(self, peer: str, seconds: float) -> None:
        """The peer has used so many seconds of a processor."""
        if not self._share:
            return
        with self._lock:
            self._pay()
            if peer in self._debts or len(self._debts) < MOST_PEERS:
                owed = self._debts.get(peer, 0.0) + seconds
                self._debts[peer] = owed if self._applies() else min(owed, BURST_S)
                if owed > BURST_S:
                    self._over.add(peer)

    def wait_s(self, peer: str) -> float:
        """For about how long the peer must wait; 0 when it is not over the quota."""
        if peer not in self._over or not self._applies():
            return 0.0
        with self._lock:
            self._pay()
            over = self._debts.get(peer, 0.0) - (BURST_S - PAUSE_S)
            if over <= 0.0:
                self._over.discard(peer)
                return 0.0
            return over * len(self._debts) / self._share

    def lift(self) -> None:
        """Something that the quota protects needs no protection any more."""
        with self._lock:
            self._applied -= 1
            self._lifted_at = self._clock()

    def apply(self) -> None:
        """End `lift`, or begin something that the quota protects."""
        with self._lock:
            if not self._applies():
                self._debts = {peer: min(owed, BURST_S) for peer, owed in self._debts.items()}
            self._applied += 1

    def _applies(self) -> bool:
        return self._applied > 0 or self._clock() < self._lifted_at + IDLE_S

    def _pay(self) -> None:
        now = self._clock()
        left, self._paid_at = (now - self._paid_at) * self._share, now
        while self._debts and left > 0.0:
            count = len(self._debts)
            part = min(left / count, min(self._debts.values()))
            left -= part * count
            self._debts = {peer: owed - part for peer, owed in self._debts.items() if owed > part}
