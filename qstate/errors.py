"""The error tree and the failure codes: what can go wrong, and what to do about it.

Rules of this module: it imports nothing of qstate, and every failure that can cross a socket has a code here. The wire
carries only the code and a few typed details. The receiver makes the message, so no peer has to parse or trust another
peer's text.

    QStateError
    ├── ConfigError               a setting is unknown or has an invalid value
    ├── ClosedError               use after close()
    ├── SerializationError        a value does not fit its declared type or serializer
    ├── InstallationError         Java, Python or an optional package is missing or of the wrong version
    ├── ProtocolError
    │   ├── LocalProtocolError    this side broke the protocol: a bug in the caller
    │   └── RemoteProtocolError   the peer broke it
    ├── CheckpointError           a checkpoint is another job's, is too new, or cannot be written or read
    │   └── DamagedCheckpoint     a file of a checkpoint is missing, or has changed since it was written
    ├── FencedError               an older attempt, or a process that lost its lease, was fenced
    ├── JobError                  the job cannot continue; names the operator, state or function at fault
    ├── UnsupportedOperation      a mutator of a read-only view, or an operation that a backend does not declare
    └── QueryError                a query failed; `.code` says why
        ├── one class for each FailureCode (see ERROR_CLASSES)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import ClassVar

__all__ = [
    "ERROR_CLASSES",
    "CheckpointError",
    "ClosedError",
    "Compacted",
    "ConcurrentModification",
    "ConfigError",
    "DamagedCheckpoint",
    "DeadlineExceeded",
    "EpochNotReached",
    "FailureCode",
    "FencedError",
    "Forbidden",
    "InstallationError",
    "InternalFailure",
    "JobError",
    "KeyGroupNotOwned",
    "KeyNotFound",
    "LocalProtocolError",
    "MalformedRequest",
    "NoCommittedEpoch",
    "Overloaded",
    "ProtocolError",
    "QStateError",
    "QueryError",
    "RemoteProtocolError",
    "Restoring",
    "Retry",
    "ScanExpired",
    "SerializationError",
    "ShuttingDown",
    "TlsFailed",
    "TooLarge",
    "TooStale",
    "Unauthenticated",
    "Unavailable",
    "UnknownJob",
    "UnknownKeyGroupLocation",
    "UnknownState",
    "UnknownStateId",
    "UnsupportedOperation",
    "UnsupportedQuery",
    "VersionMismatch",
    "WrongKeyType",
    "query_error",
]

#: The values that a failure detail may have on the wire.
Detail = str | int | float | bool | None


class Retry(Enum):
    """What the receiver of a failure should do. Retries are always bounded by the request's deadline."""

    FATAL = "the same request will fail again, or must not be sent again by itself"
    RETRY_HERE = "the same server may succeed a little later"
    LOOK_UP_AGAIN = "the state may have moved: drop the cached location, look it up, then retry"


class FailureCode(IntEnum):
    """Why a request, or one key of a request, has no value. The numbers are the wire's and never change."""

    UNKNOWN_JOB = 1
    UNKNOWN_STATE = 2
    UNKNOWN_KEY_GROUP_LOCATION = 3
    UNKNOWN_STATE_ID = 4
    KEY_GROUP_NOT_OWNED = 5
    KEY_NOT_FOUND = 6
    WRONG_KEY_TYPE = 7
    RESTORING = 8
    SHUTTING_DOWN = 9
    OVERLOADED = 10
    DEADLINE_EXCEEDED = 11
    CONCURRENT_MODIFICATION = 12
    UNSUPPORTED = 13
    MALFORMED = 14
    TOO_LARGE = 15
    VERSION_MISMATCH = 16
    UNAUTHENTICATED = 17
    FORBIDDEN = 18
    INTERNAL = 19
    UNAVAILABLE = 20
    EPOCH_NOT_REACHED = 21
    TOO_STALE = 22
    NO_COMMITTED_EPOCH = 23
    TLS_FAILED = 24
    COMPACTED = 25
    SCAN_EXPIRED = 26
    CANCELLED = 27

    @property
    def retry(self) -> Retry:
        return ERROR_CLASSES[self].retry


class QStateError(Exception):
    """The root of every error that qstate raises on purpose."""


class ConfigError(QStateError):
    """A setting is unknown or has an invalid value; the message says what is valid."""


class ClosedError(QStateError):
    """The object was used after `close()`."""


class SerializationError(QStateError):
    """A value does not fit the type or serializer that its descriptor declares."""


class InstallationError(QStateError, ImportError):
    """Java, Python or an optional package is missing or of the wrong version; the message says what to install.

    It is an `ImportError`, too: a program that imports an optional part of qstate expects that one.
    """


class ProtocolError(QStateError):
    """Bytes or messages that the wire protocol does not allow."""

    def __init__(self, message: str, code: FailureCode = FailureCode.MALFORMED) -> None:
        super().__init__(message)
        self.code = code


class LocalProtocolError(ProtocolError):
    """This side tried to send a message that the protocol does not allow now. It sent nothing."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes or a message that the protocol does not allow."""


class CheckpointError(QStateError):
    """A checkpoint belongs to another job, is from a newer qstate, or cannot be written or read."""


class DamagedCheckpoint(CheckpointError):
    """A file of a checkpoint is missing, or has changed since it was written; the message names it."""


class FencedError(QStateError):
    """A newer attempt has fenced this one: nothing that this one does afterwards counts.

    `superseded`: the whole process is fenced, because another one writes the epoch log now.
    """

    def __init__(self, message: str, *, superseded: bool = False) -> None:
        super().__init__(message)
        self.superseded = superseded


class JobError(QStateError):
    """The job cannot continue as written; the message names the operator, state or function at fault."""


class UnsupportedOperation(QStateError):
    """A mutator was called on a read-only view, or an operation that the backend does not declare."""


class QueryError(QStateError):
    """A query failed. `code` says why, `details` holds the typed facts that came with the code."""

    code: ClassVar[FailureCode]
    retry: ClassVar[Retry]
    template: ClassVar[str]

    def __init_subclass__(cls, *, code: FailureCode, retry: Retry = Retry.FATAL) -> None:
        cls.code, cls.retry = code, retry

    def __init__(self, **details: Detail) -> None:
        self.details: Mapping[str, Detail] = details
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.details.items())
        return f"{self.template} ({facts})" if facts else self.template

    def __reduce__(self) -> tuple[object, tuple[type[QueryError], dict[str, Detail]]]:
        return _rebuild, (type(self), dict(self.details))


def _place(details: Mapping[str, Detail]) -> str:
    host = str(details.get("host"))
    return f"{f'[{host}]' if ':' in host else host}:{details.get('port')}"


def _rebuild(error_class: type[QueryError], details: dict[str, Detail]) -> QueryError:
    return error_class(**details)


class UnknownJob(QueryError, code=FailureCode.UNKNOWN_JOB):
    """No job of that name is served here."""

    template = "no job of that name is served here; list the jobs to see which are"


class UnknownState(QueryError, code=FailureCode.UNKNOWN_STATE):
    """The job has no queryable state of that name, or not yet: states appear when their function is opened."""

    template = "the job has no queryable state of that name (states appear when the job's first epoch starts)"


class UnknownKeyGroupLocation(QueryError, code=FailureCode.UNKNOWN_KEY_GROUP_LOCATION, retry=Retry.LOOK_UP_AGAIN):
    """The state exists, but no task manager owns the key's group at the moment, such as during a restart."""

    template = "no task manager owns the key's key group at the moment; it may be restarting"


class UnknownStateId(QueryError, code=FailureCode.UNKNOWN_STATE_ID, retry=Retry.LOOK_UP_AGAIN):
    """The server holds no state of that id, or not any more: it moved or was restored under a new id."""

    template = "the server holds no state of that id; it moved or was restored under a new one"


class KeyGroupNotOwned(QueryError, code=FailureCode.KEY_GROUP_NOT_OWNED, retry=Retry.LOOK_UP_AGAIN):
    """The server holds the state, but not the key group of that key."""

    template = "the server does not own the key's key group"


class KeyNotFound(QueryError, code=FailureCode.KEY_NOT_FOUND):
    """The state holds nothing for that key and namespace: a result, not a fault."""

    template = "the state holds nothing for that key"


class WrongKeyType(QueryError, code=FailureCode.WRONG_KEY_TYPE):
    """The key or the namespace does not have the types of the state's keys or namespaces."""

    template = "the key or the namespace does not have the types of the state's keys or namespaces"


class Restoring(QueryError, code=FailureCode.RESTORING, retry=Retry.RETRY_HERE):
    """The owner is restoring the state; it will answer soon."""

    template = "the state is being restored"


class ShuttingDown(QueryError, code=FailureCode.SHUTTING_DOWN, retry=Retry.LOOK_UP_AGAIN):
    """The server is shutting down; another one will serve the state, if any."""

    template = "the server is shutting down"


class Overloaded(QueryError, code=FailureCode.OVERLOADED, retry=Retry.RETRY_HERE):
    """The server's queue is full. `details['retry_after_ms']` says when to retry."""

    template = "the server has more requests than it can queue; slow down and retry"


class DeadlineExceeded(QueryError, code=FailureCode.DEADLINE_EXCEEDED):
    """The deadline passed before an answer arrived; the server may or may not have executed the request."""

    template = "no answer within the request's deadline"


class ConcurrentModification(QueryError, code=FailureCode.CONCURRENT_MODIFICATION, retry=Retry.RETRY_HERE):
    """The value changed while a copy-free backend was reading it."""

    template = "the value changed while it was being read (a copy-free backend's documented hazard); retry"


class UnsupportedQuery(QueryError, code=FailureCode.UNSUPPORTED):
    """The state's backend, or the server, does not support the request."""

    template = "the server or the state's backend does not support that"


class MalformedRequest(QueryError, code=FailureCode.MALFORMED):
    """The request's frame is valid, its content is not. The connection stays open."""

    template = "the request does not have the form that the protocol reference gives"


class TooLarge(QueryError, code=FailureCode.TOO_LARGE):
    """A frame, a key, or an answer is larger than the limit."""

    template = "larger than the limit"

    def _sentence(self) -> str:
        if self.details.get("field") != "answer" and "key" not in self.details:
            return super()._sentence()
        key = self.details.get("key")
        return (
            f"{f'key {key}: ' if key else ''}the answer is larger than a frame: ask for fewer keys at a time, or read "
            "the value in pieces with `get_large`, or a part of it with `get_entries`, `get_page` or `get_slice`"
        )


class VersionMismatch(QueryError, code=FailureCode.VERSION_MISMATCH):
    """Client and server share no version of the protocol."""

    template = "client and server share no version of the protocol; upgrade the older one"

    def _sentence(self) -> str:
        if self.details.get("greeted") is not False:
            return super()._sentence()
        return (
            f"the process that listens at {_place(self.details)} is no client proxy and no state server of qstate: "
            f"{self.details.get('reason')}. Check the port; a task manager's log names its own "
            "(`Started the Queryable State Proxy Server @ host:port`)"
        )


class Unauthenticated(QueryError, code=FailureCode.UNAUTHENTICATED):
    """The server knows neither the client's token nor its certificate, or the client sent a wrong token."""

    template = "the server requires a valid token, or a certificate that its rules name"


class Forbidden(QueryError, code=FailureCode.FORBIDDEN):
    """The token or the certificate is valid, but does not permit the request."""

    template = "the server's rules do not permit this to the holder of this token or certificate"


class InternalFailure(QueryError, code=FailureCode.INTERNAL):
    """The server failed unexpectedly; its log has the cause."""

    template = "the server failed internally; its log has the cause"


class Unavailable(QueryError, code=FailureCode.UNAVAILABLE):
    """The peer could not be reached, or the connection broke during the request. The client does not send it again."""

    template = "the peer could not be reached, or the connection broke during the request"

    def _sentence(self) -> str:
        if self.details.get("connected") is not False:
            return super()._sentence()
        place, tries = _place(self.details), self.details.get("tries")
        return (
            f"cannot connect to {place}{f' ({tries} tries)' if tries else ''}: {self.details.get('reason')}. Is the "
            "job running, and is this the address of one of its client proxies? A task manager's log names its own "
            f"(`Started the Queryable State Proxy Server @ host:port`), `qstate jobs --proxy {place}` tries a proxy"
        )


class EpochNotReached(QueryError, code=FailureCode.EPOCH_NOT_REACHED, retry=Retry.RETRY_HERE):
    """The node serves an earlier epoch than the query demands with `min_epoch`."""

    template = "the node serves an earlier epoch than min_epoch; wait for the epoch, or demand less"


class TooStale(QueryError, code=FailureCode.TOO_STALE, retry=Retry.RETRY_HERE):
    """The node may lack commits that are older than the query's `max_staleness_s`."""

    template = "the node may lack commits that are older than the query's max_staleness_s; retry, or allow more"


class NoCommittedEpoch(QueryError, code=FailureCode.NO_COMMITTED_EPOCH, retry=Retry.RETRY_HERE):
    """The query asks for committed state, and no epoch is committed yet: the job's first epoch is not final."""

    template = "no epoch has been committed yet that the node could answer from; wait for the job's first, or ask live"


class TlsFailed(QueryError, code=FailureCode.TLS_FAILED):
    """No TLS connection could be made: one end speaks no TLS, or does not accept the other's certificate."""

    template = "no TLS connection could be made"

    def _sentence(self) -> str:
        if self.details.get("expected") == "TLS":
            return (
                "the server takes TLS connections only: give the client tls=ClientTls(...), or --tls-ca on the "
                "command line"
            )
        place = f" with {_place(self.details)}" if "host" in self.details else ""
        return f"{self.template}{place}: {self.details.get('reason', 'the peer gave no reason')}"


class Compacted(QueryError, code=FailureCode.COMPACTED):
    """The changes from that epoch on are not stored any more. `details['oldest_epoch']` is the oldest that are."""

    template = "the changes since that epoch are not stored any more; subscribe again, with a new snapshot"


class ScanExpired(QueryError, code=FailureCode.SCAN_EXPIRED):
    """The owner no longer has the epoch that a committed scan began with: too long a time passed between two pages."""

    template = "the owner no longer has the scan's epoch; begin again, or go on from the scan's position in a later one"


class QueryCancelled(QueryError, code=FailureCode.CANCELLED):
    """Its caller has cancelled the query; the server may have executed it or not."""

    template = "the query was cancelled"


#: The one table between codes and classes.
ERROR_CLASSES: Mapping[FailureCode, type[QueryError]] = {
    error_class.code: error_class for error_class in QueryError.__subclasses__()
}


def query_error(code: int, details: Mapping[str, Detail] | None = None) -> QueryError:
    """The error of a failure code. An unknown code, of a newer peer, becomes `InternalFailure` with `unknown_code`."""
    try:
        error_class = ERROR_CLASSES[FailureCode(code)]
    except ValueError:
        return InternalFailure(unknown_code=code, **(details or {}))
    return error_class(**(details or {}))
