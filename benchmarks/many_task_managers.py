"""The control connections of the task managers and relays of a large job, from one process.

Rules of this module: the connections, calls and messages are those of task managers and relays; there is nothing behind
them. It obeys lines on its standard input and answers each with a line. The measurements are made in the driver.

    start WAVE     the relays of so many task managers get the order to start them, and wait; then these register
    epoch          one relay after the other, for each task manager: connect, find the task manager, close
    locate COUNT   so many task managers ask for the location of the state
    beat           each task manager sends a heartbeat
    move           one task manager is lost, and another one takes its place
"""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType

from qstate.backends import HeapBackend
from qstate.descriptors import ValueStateDescriptor
from qstate.keys import ColumnType, KeyGroupRange
from qstate.runtime.control.addresses import Bootstrap, TaskManagerAddress
from qstate.runtime.control.rpc import RpcPeer, connect
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.registry import StateInstance

__all__ = ["OPERATOR", "STATE", "ManyTaskManagers", "description", "owner_of"]

OPERATOR, STATE = "alerts", "lastTemperature"
TIMEOUT_S = 300.0
#: How long a relay waits for a task manager that it starts before it asks again.
WAIT_S = 120.0


def description(groups: int) -> dict[str, object]:
    """The state's description on the wire."""
    descriptor = ValueStateDescriptor("last", float).queryable(STATE)
    everything = KeyGroupRange(0, groups)
    return dict(
        StateInstance(
            "large", descriptor, (ColumnType.STRING,), everything, groups, HeapBackend.capabilities, {}
        ).describe()
    )


def owner_of(index: int, count: int, groups: int, incarnation: int = 1) -> Owner:
    """The state server of a task manager."""
    state_id = (index * 1000 + incarnation).to_bytes(16, "big")
    return Owner(KeyGroupRange.of_subtask(index, count, groups), _host(index), 9067, state_id)


def _host(index: int) -> str:
    return f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}"


class ManyTaskManagers:
    """The process, for the driver that measures. Close it before the job manager."""

    def __init__(self, address: tuple[str, int], secret: bytes, count: int, groups: int) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        pickle.dump((address, secret, count, groups), self._orders)
        self._orders.flush()

    def obey(self, order: str) -> int:
        """Have it do what a line says. Returns the bytes that it got, where the order is about these."""
        self._orders.write(f"{order}\n".encode())
        self._orders.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError(f"the process of the task managers ended in {order!r}")
        return int(answer)

    def __enter__(self) -> ManyTaskManagers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._orders.close()
        self._answers.close()
        self._process.wait(TIMEOUT_S)


class _Process:
    def __init__(self, address: tuple[str, int], secret: bytes, count: int, groups: int) -> None:
        self._address, self._secret, self._count, self._groups = address, secret, count, groups
        self._state = description(groups)
        self._peers: list[RpcPeer] = []

    def start(self, wave: int) -> int:
        """Start all of them, `wave` at a time."""
        for first in range(0, self._count, wave):
            indexes = range(first, min(first + wave, self._count))
            relays = [self._connection() for _ in indexes]
            orders = [relay.submit("acquire", index, 0, 0.0) for relay, index in zip(relays, indexes, strict=True)]
            assert all(isinstance(order.result(TIMEOUT_S), Bootstrap) for order in orders)
            waits = [relay.submit("acquire", index, 0, WAIT_S) for relay, index in zip(relays, indexes, strict=True)]
            self._peers += [self._registered(index, 1) for index in indexes]
            assert all(isinstance(found.result(TIMEOUT_S), TaskManagerAddress) for found in waits)
            for relay in relays:
                relay.close()
        return 0

    def epoch(self) -> int:
        """What the relays of one micro-batch ask the driver."""
        for index in range(self._count):
            relay = self._connection()
            assert isinstance(relay.call("acquire", index, 0, WAIT_S, timeout_s=TIMEOUT_S), TaskManagerAddress)
            relay.close()
        return 0

    def locate(self, count: int) -> int:
        """Ask for the location; returns the bytes of the last answer."""
        found = b""
        for peer in self._peers[:count]:
            found = peer.call("locate", STATE, timeout_s=TIMEOUT_S)
        assert isinstance(pickle.loads(found), LocationTable)
        return len(found)

    def beat(self) -> int:
        """One heartbeat each, all at once."""
        for done in [peer.submit("heartbeat", index, 1) for index, peer in enumerate(self._peers)]:
            done.result(TIMEOUT_S)
        return 0

    def move(self) -> int:
        """The last task manager is lost; a relay starts another one."""
        index = self._count - 1
        self._peers[index].close()
        relay = self._connection()
        while not isinstance(relay.call("acquire", index, 0, 0.0, timeout_s=TIMEOUT_S), Bootstrap):
            pass  # the driver has not noticed the loss yet
        self._peers[index] = self._registered(index, 2)
        relay.close()
        return 0

    def _connection(self) -> RpcPeer:
        """What a relay and a task manager begin with."""
        handlers: dict[str, Callable[..., object]] = {"finalize": lambda *_: None, "stop": lambda *_: None}
        return RpcPeer(connect(*self._address, self._secret, timeout_s=TIMEOUT_S), handlers).start()

    def _registered(self, index: int, incarnation: int) -> RpcPeer:
        peer = self._connection()
        host, port = _host(index), 9067
        address = TaskManagerAddress(
            index, incarnation, host, os.getpid(), host, 9066, "", (host, port), (host, 9069), executor_pid=0
        )
        peer.call("register", address, timeout_s=TIMEOUT_S)
        peer.call("register_states", OPERATOR, [self._state], timeout_s=TIMEOUT_S)
        owner = owner_of(index, self._count, self._groups, incarnation)
        peer.call("publish", index, index, [(self._state, owner)], timeout_s=TIMEOUT_S)
        return peer

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


def allow_many_files() -> None:
    """A connection is a file descriptor: let this process have as many as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _main() -> None:
    allow_many_files()
    process = _Process(*pickle.load(sys.stdin.buffer))
    for line in sys.stdin.buffer:
        order, *numbers = line.decode().split()
        print(getattr(process, order)(*map(int, numbers)), flush=True)
    process.close()


if __name__ == "__main__":
    _main()
