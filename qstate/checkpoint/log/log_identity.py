"""The identity of an epoch log, and the check that a file belongs to it and has the right name.

Rules of this module: headers and names in, nothing or an error out; it reads no file. People copy directories and
bring files back by hand. A sound file of another subtask or of another number is damage, too; its error says which
file is in the wrong place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from qstate.checkpoint.log.file_names import FileKind, parse_name
from qstate.errors import DamagedCheckpoint
from qstate.keys import KeyGroupRange

__all__ = ["LogIdentity", "check_name", "misplaced", "owner_of"]

#: The kinds that the header of a file may name, by the kind of its name.
_HEADER_KINDS = {
    FileKind.LOG: ("writer", "epoch"),
    FileKind.SNAPSHOT: ("snapshot",),
    FileKind.OUTPUT: ("output",),
}
_BRING_BACK = "bring the right one back from a copy of the checkpoint directory"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The subtask that a log belongs to. A log opens only under the identity that it was created with."""

    job: str
    operator: str
    subtask: int
    parallelism: int
    max_parallelism: int

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange.of_subtask(self.subtask, self.parallelism, self.max_parallelism)

    def __str__(self) -> str:
        return (
            f"job {self.job!r}, operator {self.operator!r}, subtask {self.subtask} of {self.parallelism} "
            f"(max_parallelism {self.max_parallelism})"
        )


def owner_of(header: Mapping[str, Any]) -> LogIdentity:
    """The identity of the log that a file's header names."""
    return LogIdentity(**{field.name: header[field.name] for field in fields(LogIdentity)})


def misplaced(header: Mapping[str, Any], path: object, identity: LogIdentity) -> DamagedCheckpoint:
    """The error for a file of another log."""
    owner = owner_of(header)
    own, others = asdict(identity), asdict(owner)
    wanted = ", ".join(f"{name} {value!r}" for name, value in own.items() if others[name] != value)
    return DamagedCheckpoint(f"{path} is a file of {owner}, in the place of one of {wanted}: {_BRING_BACK}")


def check_name(header: Mapping[str, Any], name: str, path: object) -> None:
    """Raise `DamagedCheckpoint` for a file whose name has another number or kind than its header."""
    found = parse_name(name)
    if found is None or header["kind"] not in _HEADER_KINDS[found.kind] or header["sequence"] != found.number:
        raise DamagedCheckpoint(
            f"{path} is file {header['sequence']} of its log ({header['kind']}), under another name: {_BRING_BACK}"
        )
