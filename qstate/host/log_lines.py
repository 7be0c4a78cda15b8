"""The form of the log lines of qstate's own processes: text, or one JSON object a line.

Rules of this module: it configures the root logger of a process that belongs to qstate (a task manager, a snapshot
process, `qstate serve`), and never that of a program that uses qstate. It knows no file.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any, NamedTuple

__all__ = ["FORMS", "JsonLines", "LogLines", "configure_logs", "configured_logs"]

#: The forms, by the names that settings have for them.
FORMS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogLines(NamedTuple):
    """The form of the lines, and the job and process that JSON lines name."""

    form: str = "text"
    job: str = ""
    process: str = ""


class JsonLines(logging.Formatter):
    """A record as one JSON object in one line: `time` (UTC), `level`, `logger`, `message`, `job`, `process`.

    `exception` has the traceback, and `stack` the stack, of a record that has one. `audit` has the fields of a line of
    the audit log.
    """

    def __init__(self, lines: LogLines) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "job": self._lines.job,
            "process": self._lines.process,
        }
        audit = getattr(record, "audit", None)
        if audit is not None:
            found["audit"] = audit
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            found["stack"] = self.formatStack(record.stack_info)
        return json.dumps(found)  # in ASCII: no text breaks the line, or the encoding of the file


_configured = LogLines()


def configure_logs(lines: LogLines) -> None:
    """Write the log of this process to its standard error, from INFO on, in this form."""
    global _configured
    _configured = lines
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(lines) if lines.form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def configured_logs() -> LogLines:
    """What `configure_logs` was called with: a child process writes to the same log."""
    return _configured
