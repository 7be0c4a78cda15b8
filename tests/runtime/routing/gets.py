"""Gets to be routed, by plain calls: no socket, no clock, no sleep."""

from __future__ import annotations

from random import Random

from qstate.keys import Key, KeyGroupRange
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.routing.routed_get import Answer, Ask, Command, RoutedGet

MAX_PARALLELISM = 16
#: Of the description in each table here, and of another one.
FINGERPRINT, OTHER = "f", "g"
KEYS: tuple[Key, ...] = tuple(f"key-{number}" for number in range(40))


def owner(start: int, stop: int, port: int) -> Owner:
    return Owner(KeyGroupRange(start, stop), "127.0.0.1", port, port.to_bytes(16, "big"))


def table(*owners: Owner) -> LocationTable:
    return described(FINGERPRINT, *owners)


def described(fingerprint: str, *owners: Owner) -> LocationTable:
    return LocationTable("job", {"name": "state", "fingerprint": fingerprint}, MAX_PARALLELISM, owners)


ONE = table(owner(0, 16, 1))
TWO = table(owner(0, 8, 1), owner(8, 16, 2))
GAP = table(owner(0, 8, 1))


def routed(keys: tuple[Key, ...] = KEYS, known: LocationTable | None = TWO, deadline: float = 10.0) -> RoutedGet:
    return RoutedGet(keys, deadline=deadline, random=Random(7), table=known)


def one_ask(keys: tuple[Key, ...] = ("a",), *, deadline: float = 10.0) -> tuple[RoutedGet, Ask]:
    """A get of keys with one owner, and its request."""
    get = routed(keys, ONE, deadline)
    (ask,) = asked(get.start(0.0))
    return get, ask


def value(key: Key) -> bytes:
    return f"value of {key!r}".encode()


def answer(get: RoutedGet, ask: Command, now: float = 0.0, fingerprint: str = FINGERPRINT) -> list[Command]:
    assert isinstance(ask, Ask)
    return get.on_values(ask.part, (ask.owner.port,) * len(ask.keys), tuple(map(value, ask.keys)), fingerprint, now)


def asked(commands: list[Command]) -> list[Ask]:
    assert all(isinstance(command, Ask) for command in commands), commands
    return [command for command in commands if isinstance(command, Ask)]


def the_answer(commands: list[Command]) -> Answer:
    assert len(commands) == 1
    assert isinstance(commands[0], Answer), commands
    return commands[0]
