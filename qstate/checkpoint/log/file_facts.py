"""The types of the metadata in checkpoint files: headers, footers, JSON manifests, schemas, lists.

Rules of this module: plain data in, nothing or an error out; it reads no file. A checksum proves that a file was not
changed since it was written. It does not prove that qstate wrote it. So readers check all metadata against these types
before they use it. Unknown facts pass: a newer qstate may add some that readers can ignore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from qstate.errors import CheckpointError, DamagedCheckpoint, SerializationError, WrongKeyType
from qstate.evolution import StateSchema
from qstate.keys import MAX_PARALLELISM_LIMIT, ColumnType

__all__ = [
    "FORMAT",
    "LARGEST_MANIFEST",
    "LARGEST_VOID",
    "PARTIAL_FORMAT",
    "WHAT_TO_DO",
    "FinalFacts",
    "FooterFacts",
    "JobFacts",
    "SavepointFacts",
    "check_facts",
    "check_format",
    "check_lists",
    "check_log_file",
    "check_savepoint_file",
    "check_schemas",
    "readable",
]

FORMAT = 2
#: The format of snapshots that build on another one. Apart from that they are as in format 2.
PARTIAL_FORMAT = 3
#: The most files that one opening can declare void.
LARGEST_VOID = 1000
#: The largest JSON file in bytes: far more than the schemas of a thousand states take.
LARGEST_MANIFEST = 16 << 20

WHAT_TO_DO = (
    "the epoch log cannot be used: bring the file back from a copy of the checkpoint directory, or start the job "
    "again with an empty checkpoint directory (both qstate's and Spark's)"
)

Count = Annotated[int, Meta(ge=0)]
Epoch = Annotated[int, Meta(ge=-1)]
Group = Annotated[int, Meta(ge=0, lt=MAX_PARALLELISM_LIMIT)]
Parallelism = Annotated[int, Meta(ge=1, le=MAX_PARALLELISM_LIMIT)]
#: The name of a file in the same directory; it cannot lead to another directory.
FileName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_-][0-9A-Za-z._-]*$")]


class _LogHeader(TypedDict):
    kind: Literal["writer", "epoch", "snapshot", "output"]
    job: str
    operator: str
    subtask: Count
    parallelism: Parallelism
    max_parallelism: Parallelism
    sequence: Count
    previous: Count
    writer: Count
    epoch: Epoch


class LogHeaderFacts(_LogHeader, total=False):
    """The header of every file of an epoch log."""

    states: list[dict[str, Any]]
    since: tuple[Count, Count]
    void: Annotated[int, Meta(ge=0, le=LARGEST_VOID)]
    compression: str


class SavepointHeaderFacts(TypedDict):
    """The header of a `.savepoint` file."""

    kind: Literal["savepoint"]
    job: str
    operator: str
    epoch: Epoch
    max_parallelism: Parallelism
    states: list[dict[str, Any]]


class _Footer(TypedDict):
    blocks: Count
    entries: Count
    digest: Count


class OutputFacts(TypedDict):
    """What an epoch's footer says of the file with its output."""

    seal: Count
    frames: Count


class InputFacts(TypedDict):
    """What an epoch's footer says of its input rows."""

    rows: Count
    digest: Count
    columns: Count


class FooterFacts(_Footer, total=False):
    """The footer of every file."""

    index: list[tuple[Group, Count]]
    output: OutputFacts | None
    input: InputFacts | None


class ListFacts(TypedDict):
    """A list of operator state in a footer."""

    schema: dict[str, Any]
    distribution: str
    elements: list[bytes]


class _Job(TypedDict):
    job: str
    max_parallelism: Parallelism
    layouts: Annotated[list[Parallelism], Meta(min_length=1)]
    operators: dict[str, str]
    restored_from: Annotated[str, Meta(min_length=1)] | None


class JobFacts(_Job, total=False):
    """`job.json`."""

    history: Annotated[str, Meta(min_length=1, max_length=64)]


class FinalFacts(TypedDict):
    """`final.json`."""

    epochs: dict[str, Epoch]


class StoredFacts(TypedDict):
    """An operator in `savepoint.json`."""

    file: FileName
    seal: Count
    entries: Count
    query: str
    epoch: Epoch
    parallelism: Parallelism
    states: list[dict[str, Any]]


class SavepointFacts(TypedDict):
    """`savepoint.json`."""

    job: str
    max_parallelism: Parallelism
    created: str
    operators: dict[str, StoredFacts]


def check_facts(plain: Any, kind: Any, where: str, what_to_do: str = WHAT_TO_DO) -> None:
    """Raise `DamagedCheckpoint` unless plain data has the type `kind`. The message begins with `where`."""
    try:
        msgspec.convert(plain, kind, builtin_types=(bytes,))  # else msgspec would take base 64 text for bytes
    except (msgspec.ValidationError, RecursionError) as exc:
        raise DamagedCheckpoint(f"{where} is not as qstate writes it: {exc}; {what_to_do}") from exc


def check_format(plain: Mapping[str, Any], expected: int, path: object) -> None:
    """Raise `CheckpointError` for metadata of another format."""
    found = plain.get("format")
    if found != expected:
        raise CheckpointError(
            f"{path} has format {found!r:.40}, expected {expected}: another version of qstate wrote it; use that "
            "version"
        )


def check_log_file(header: Mapping[str, Any], path: object) -> None:
    """Check the header of a file of an epoch log.

    Raises `CheckpointError` for another format or a schema of a newer qstate, `DamagedCheckpoint` for anything else.
    """
    check_format(header, PARTIAL_FORMAT if "since" in header else FORMAT, path)
    check_facts(header, LogHeaderFacts, f"the header of {path}")
    if not header["subtask"] < header["parallelism"] <= header["max_parallelism"]:
        raise DamagedCheckpoint(f"the header of {path} names a subtask that cannot be; {WHAT_TO_DO}")
    check_schemas(header.get("states", ()), path)


def check_savepoint_file(header: Mapping[str, Any], path: object) -> None:
    """Check the header of a file of a savepoint; raises `DamagedCheckpoint` and `CheckpointError`."""
    check_facts(header, SavepointHeaderFacts, f"the header of {path}")
    check_schemas(header["states"], path)


def check_schemas(states: Iterable[Mapping[str, Any]], path: object) -> None:
    """Raise `CheckpointError` for a schema that cannot be read, and when two states have one name."""
    names: set[str] = set()
    for plain in states:
        try:
            name = StateSchema.from_plain(plain).name
            check_key_types(plain)
        except CheckpointError as exc:
            raise CheckpointError(f"{path}: {exc}") from exc
        if name in names:
            raise DamagedCheckpoint(f"{path} describes state {name!r} twice; {WHAT_TO_DO}")
        names.add(name)


def check_key_types(plain: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` for unknown key types. A list of operator state has no key types."""
    found = plain.get("key_types", [])
    known = {kind.value for kind in ColumnType}
    if not isinstance(found, list) or not all(type(one) is str and one in known for one in found):
        raise CheckpointError(
            f"state {plain['name']!r} is stored by keys of types that are unknown here: {found!r:.80}"
        )


def check_lists(found: Any, path: object) -> None:
    """Check the operator state of a subtask.

    Raises `DamagedCheckpoint`, and `CheckpointError` for a schema that cannot be read.
    """
    check_facts(found, list[ListFacts], f"the operator state in {path}")
    for one in found:
        try:
            StateSchema.from_plain(one["schema"])
        except CheckpointError as exc:
            raise CheckpointError(f"{path}: {exc}") from exc


#: What decoding, merging and loading raise for invalid contents.
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    SerializationError,
    TypeError,
    ValueError,
    WrongKeyType,
)


@contextmanager
def readable(where: object) -> Iterator[None]:
    """Translate the errors of decoding, merging and loading stored contents into `DamagedCheckpoint`.

    Readers do not check each entry beforehand, to save time; `qstate checkpoint verify` does.
    """
    try:
        yield
    except _UNREADABLE as exc:
        raise DamagedCheckpoint(
            f"{where} has contents that cannot be read ({type(exc).__name__}: {exc}); `qstate checkpoint verify` names "
            f"the file: {WHAT_TO_DO}"
        ) from exc
