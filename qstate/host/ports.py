"""The ports that a process may listen on: text, numbers, ranges, and iterables of these; and the text of an address.

Rules of this module: it checks and converts. It must not open a port. Whatever it is given, it reads at most one entry
more than there are ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import index
from reprlib import Repr
from typing import Any, SupportsIndex

from qstate.errors import ConfigError

__all__ = ["PORTS", "Ports", "parse_address", "parse_ports", "ports_text"]

#: How many ports there are, from 0 to 65535, and the most that one list may have.
PORTS = 65_536

Ports = str | SupportsIndex | range | Iterable[str | SupportsIndex | range]
"""Ports, tried in order: text ("9069,9100-9200"), a number, a range, or an iterable of these. 0 is any free port."""

_repr = Repr()
_repr.maxstring = _repr.maxother = 80


def parse_ports(ports: Ports) -> list[range]:
    """The ports in order, as ranges of at least one port. 0 means any free port.

    Raises `ConfigError` for a port that is not 0 to 65535, an empty or descending range in text, an empty range or
    iterable, more than 65536 ports, and anything that is not ports.
    """
    found: list[range] = []
    count = 0
    for part in _ranges(ports):
        count += len(part)
        if count > PORTS:
            raise ConfigError(f"more than {PORTS} ports are given: every port needs to be tried only once")
        found.append(part)
    if not found:
        raise ConfigError(f"ports need at least one port; here is no port, got {_shown(ports)}")
    return found


def parse_address(setting: str, text: str) -> tuple[str, int]:
    """The host and the port of text such as "localhost:9069" or "[::1]:9069", which a setting of that name has.

    Raises `ConfigError` for anything else, and for port 0, at which no server listens.
    """
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and len(port) < 6 and port.isascii() and port.isdecimal() and 0 < int(port) < PORTS):
        raise ConfigError(f"{setting} takes HOST:PORT, as in localhost:9069, got {text!r:.80}")
    return host.strip("[]"), int(port)


def ports_text(ports: Ports) -> str:
    """The same ports as text. Text stays as it is. Raises `ConfigError` as `parse_ports` does."""
    found = parse_ports(ports)
    return ports if isinstance(ports, str) else ",".join(chain.from_iterable(map(_texts, found)))


def _texts(ports: range) -> Iterator[str]:
    if len(ports) > 1 and ports.step == 1:
        yield f"{ports[0]}-{ports[-1]}"
    else:
        yield from map(str, ports)


def _ranges(ports: Any) -> Iterator[range]:
    if isinstance(ports, Iterable) and not isinstance(ports, (str, range, bytes, bytearray, memoryview)):
        for entry in ports:
            yield from _ranges_of(entry)
    else:
        yield from _ranges_of(ports)


def _ranges_of(entry: Any) -> Iterator[range]:
    if isinstance(entry, str):
        yield from (_range_of_text(part, entry) for part in entry.split(","))
    elif isinstance(entry, range):
        yield _checked(entry)
    elif isinstance(entry, SupportsIndex) and not isinstance(entry, bool):
        port = index(entry)
        yield _checked(range(port, port + 1), entry)
    else:
        raise ConfigError(
            f"ports are text such as '9069,9100-9200', a number, a range, or an iterable of these, got {_shown(entry)}"
        )


def _range_of_text(part: str, text: str) -> range:
    first, dash, last = (piece.strip() for piece in part.partition("-"))
    ends = [first, last if dash else first]
    if not all(end.isascii() and end.isdigit() for end in ends):
        raise ConfigError(f"ports must be a list of ports and ranges such as '9069,9100-9200', got {_shown(text)}")
    # A number of many digits is refused before it is converted, which would take long.
    start, last_port = (int(end[-6:]) if not end[:-6].strip("0") else PORTS for end in ends)
    if not start <= last_port < PORTS:
        raise ConfigError(f"ports are 0 to 65535 and ranges ascend, got {_shown(part.strip())} in {_shown(text)}")
    return range(start, last_port + 1)


def _checked(ports: range, given: object = None) -> range:
    if not ports:
        raise ConfigError(f"ports have an empty range of ports: {_shown(ports)}")
    if not (0 <= ports[0] < PORTS and 0 <= ports[-1] < PORTS):
        raise ConfigError(f"ports are 0 to 65535, got {_shown(ports if given is None else given)}")
    return ports


def _shown(given: object) -> str:
    try:
        return _repr.repr(given)
    except ValueError:  # Python writes no number of thousands of digits
        return f"a {type(given).__name__} with a number of too many digits"
