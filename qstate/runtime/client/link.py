"""The table of a client's connections: which link leads to which address.

Rules of this module: no sockets. A link is a `PipelinedConnection` of a client; the synchronous and the asyncio client
each add a socket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Generic, TypeVar

from qstate.errors import Detail
from qstate.runtime.client.operations import Operation, RoutedOperation
from qstate.runtime.client.state_cache import AddressBook, StateCache
from qstate.runtime.routing.pipelined_connection import ConnectionSettings, PipelinedConnection
from qstate.runtime.routing.routed_get import Ask, LookUp

__all__ = ["LinkTable"]

SomeLink = TypeVar("SomeLink", bound=PipelinedConnection)


class LinkTable(ABC, Generic[SomeLink]):
    """The links of one client. `caches`: one for each proxy that may be asked, the job's own first."""

    def __init__(self, caches: Sequence[StateCache], settings: ConnectionSettings, random: Random) -> None:
        self.states = caches[0]
        self.book = AddressBook(caches)
        self.random = random
        self._settings = settings
        #: By address: the link that new requests are sent over.
        self._links: dict[tuple[str, int], SomeLink] = {}
        #: Every link whose transport may still be open, including silent and lost ones.
        self.open: set[SomeLink] = set()
        #: The operations that have not finished.
        self._live: set[Operation] = set()

    @abstractmethod
    def _new_link(self, host: str, port: int) -> SomeLink:
        """A link that does not connect yet."""

    def send(
        self, operation: RoutedOperation, command: Ask | LookUp, now: float, proxy: tuple[str, int] | None = None
    ) -> None:
        """Send over the link to the command's peer. Makes the link if necessary."""
        address = command.owner.address if type(command) is Ask else proxy or self.states.proxy
        link = self._links.get(address)
        if link is not None:
            link.notice_end()
        if type(command) is Ask and not operation.is_current:
            operation.on_outdated(command.part, now)
        elif link is None or not link.takes_requests:
            link = self._links[address] = self._new_link(*address)
            self.open.add(link)
            link.send(operation, command, now)
            link.connect()
        else:
            link.send(operation, command, now)

    def stalls(self, operation: Operation) -> Mapping[str, Detail]:
        """The reason why the operation's request has not been sent yet, as details; empty when it was sent."""
        return next((found for link in self.open if (found := link.stalls(operation))), {})

    def gave_up(self, operation: Operation, now: float) -> None:
        """The operation's deadline has passed without an answer: stop using the peers that count as dead."""
        for link in list(self.open):
            link.gave_up(operation, now)
