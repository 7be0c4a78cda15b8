"""What is under test: a backend, a server or a client, and how each is made from what the command line says.

Rules of this module: it finds and describes subjects; it must not know what laws ask of them, nor pytest. Whatever
prevents a subject from being found or opened is a `SubjectError`, whose message says what to do.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from qstate.backends import BackendContext, BackendOption, Capability, StateBackend, backend_class, backend_names
from qstate.errors import QStateError
from qstate.keys import DEFAULT_MAX_PARALLELISM, KeyGroupRange

__all__ = [
    "ALL",
    "BackendSubject",
    "ClientSubject",
    "ServerSubject",
    "Subject",
    "SubjectError",
    "backend_subject",
    "client_subject",
    "parse_options",
    "read_token",
    "server_subject",
]

ALL = KeyGroupRange(0, DEFAULT_MAX_PARALLELISM)
#: How long a server may take to accept the first connection, which shows that it runs.
CONNECT_TIMEOUT_S = 5.0

_TRUTHS = {"true": True, "false": False}


class SubjectError(Exception):
    """The subject cannot be found, opened or connected. The message is for the person at the command line."""


def _pretty(subject: object, printer: Any, cycle: bool) -> None:
    """How hypothesis shows a subject in an example: as pytest does in a traceback, by its name."""
    printer.text(repr(subject))


@dataclass(frozen=True, repr=False)
class BackendSubject:
    """A backend: its class, the options to open it with, and the factory when it came as one."""

    name: str
    backend: type[StateBackend]
    options: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[[BackendContext], StateBackend] | None = None

    area: Literal["backend"] = field(default="backend", init=False)
    _repr_pretty_ = _pretty

    def __repr__(self) -> str:
        return f"<backend {self.name}>"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the class declares; whatever is no capability is left to the laws."""
        return frozenset(entry for entry in self.backend.capabilities if isinstance(entry, Capability))

    def open(
        self, directory: Path, *, key_groups: KeyGroupRange = ALL, max_parallelism: int = DEFAULT_MAX_PARALLELISM
    ) -> StateBackend:
        """A new, empty backend, whose scratch files go to `directory`; the caller closes it."""
        directory.mkdir(parents=True, exist_ok=True)
        context = BackendContext(key_groups, max_parallelism, directory, dict(self.options))
        return (self.factory or self.backend)(context)


@dataclass(frozen=True, repr=False)
class ServerSubject:
    """A running server, loaded with the fixture that `qstate-conformance fixture` prints."""

    host: str
    port: int
    token: bytes | None = None

    area: Literal["server"] = field(default="server", init=False)
    _repr_pretty_ = _pretty

    def __repr__(self) -> str:
        return f"<server {self.name}>"

    #: What a server can do is asked of it, law by law; nothing is claimed beforehand.
    capabilities: frozenset[Capability] = field(default=frozenset(Capability), init=False)

    @property
    def name(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, repr=False)
class ClientSubject:
    """A program that the suite starts and drives over its standard input and output."""

    command: tuple[str, ...]

    area: Literal["client"] = field(default="client", init=False)
    _repr_pretty_ = _pretty

    def __repr__(self) -> str:
        return f"<client {self.name}>"

    capabilities: frozenset[Capability] = field(default=frozenset(Capability), init=False)

    @property
    def name(self) -> str:
        return shlex.join(self.command)


Subject = BackendSubject | ServerSubject | ClientSubject


def backend_subject(name: str, options: Mapping[str, Any] | None = None) -> BackendSubject:
    """The backend of this name, found and opened once.

    `name` is a built-in or registered name (`heap`), or `module:attribute`, where the attribute is a `StateBackend`
    class or a factory that takes a `BackendContext` and gives a backend. Raises `SubjectError`.
    """
    found = _loaded(name) if ":" in name else _registered(name)
    given = dict(options or {})
    if isinstance(found, type) and issubclass(found, StateBackend):
        checked = _checked(name, found.options, given)
        return BackendSubject(name, _opened_once(name, found, checked), checked)
    if not callable(found):
        raise SubjectError(f"{name} is {found!r}, which is neither a StateBackend class nor a factory that makes one")
    backend = _opened_once(name, found, given)
    return BackendSubject(name, backend, _checked(name, backend.options, given), found)


def server_subject(address: str, token: bytes | None = None) -> ServerSubject:
    """The server at `HOST:PORT` (`[::1]:9069` for IPv6), which takes connections. Raises `SubjectError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SubjectError(f"a server is HOST:PORT, such as localhost:9069; got {address!r}")
    subject = ServerSubject(host.removeprefix("[").removesuffix("]"), int(port), token)
    try:
        socket.create_connection((subject.host, subject.port), CONNECT_TIMEOUT_S).close()
    except OSError as exc:
        raise SubjectError(f"no server answers at {subject.name}: {exc}; start it, then run this again") from exc
    return subject


def client_subject(command: Sequence[str]) -> ClientSubject:
    """The program that `command` starts. Raises `SubjectError` when there is no such program."""
    if not command:
        raise SubjectError("no command: say how the client's driver is started, such as -- node my_client.js")
    if shutil.which(command[0]) is None:
        raise SubjectError(_why_no_program(command[0]))
    return ClientSubject(tuple(command))


def _why_no_program(name: str) -> str:
    path = Path(name)
    if path.is_dir():
        return f"{name} is a directory; name the program in it, or what runs it, such as -- python {name}/driver.py"
    if path.is_file() and "/" in name:
        return f"{name} cannot be executed: say chmod +x {name}, or name what runs it, such as -- python {name}"
    if path.is_file():
        return f"there is no program {name!r} on the PATH; of the file here, name what runs it: -- python {name}"
    return f"there is no program {name!r} on the PATH or at that path"


def parse_options(pairs: Sequence[str]) -> dict[str, str]:
    """The options that `name=value` pairs give. Raises `SubjectError` for what is no pair."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SubjectError(f"an option is NAME=VALUE, got {pair!r}")
        found[name] = value
    return found


def read_token(path: Path) -> bytes:
    """The token in a file, without the white space around it. Raises `SubjectError`."""
    try:
        return path.read_bytes().strip()
    except OSError as exc:
        raise SubjectError(f"cannot read the token in {path}: {exc}") from exc


def _registered(name: str) -> type[StateBackend]:
    try:
        return backend_class(name)
    except QStateError as exc:
        known = ", ".join(backend_names())
        raise SubjectError(
            f"{exc}\nA backend is one of {known}, or module:attribute such as my_pkg:make_backend"
        ) from exc
    except (Exception, SystemExit) as exc:  # whatever its module does when it is imported
        raise SubjectError(f"the backend {name} cannot be imported: {type(exc).__name__}: {exc}") from exc


def _loaded(name: str) -> Any:
    module_name, _, path = name.partition(":")
    try:
        found: Any = import_module(module_name)
    except (Exception, SystemExit) as exc:  # whatever the module does when it is imported
        raise SubjectError(f"cannot import {module_name!r} for {name}: {type(exc).__name__}: {exc}") from exc
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as exc:
            raise SubjectError(f"{module_name!r} was imported, but has no {path!r}") from exc
    return found


def _opened_once(
    name: str, make: Callable[[BackendContext], StateBackend], options: Mapping[str, Any]
) -> type[StateBackend]:
    """Open and close the backend once: a backend that cannot be opened is an error, not a broken law."""
    with tempfile.TemporaryDirectory(prefix="qstate-conformance-") as scratch:
        try:
            backend = make(BackendContext(ALL, DEFAULT_MAX_PARALLELISM, Path(scratch), options))
        except Exception as exc:  # a third party's code: anything
            raise SubjectError(f"{name} cannot be opened: {type(exc).__name__}: {exc}") from exc
        if not isinstance(backend, StateBackend):
            raise SubjectError(f"{name} gave {backend!r}, which is not a StateBackend")
        backend.close()
        return type(backend)


def _checked(name: str, declared: Mapping[str, BackendOption], given: Mapping[str, Any]) -> dict[str, Any]:
    """All declared options with their values, as the job config would give them."""
    for option in given:
        if option not in declared:
            valid = ", ".join(sorted(declared)) or "none"
            raise SubjectError(f"{name} has no option {option!r}. Its options are: {valid}")
    return {
        option: _converted(option, declaration.type, given[option]) if option in given else declaration.default
        for option, declaration in declared.items()
    }


def _converted(option: str, kind: type, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return _TRUTHS[value.strip().lower()] if kind is bool else kind(value.strip())
    except (KeyError, ValueError) as exc:
        raise SubjectError(f"option {option!r} must be {kind.__name__}, got {value!r}") from exc
