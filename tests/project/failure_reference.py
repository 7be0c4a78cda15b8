"""Writes docs/reference/failures.md from the table of failure codes: run it from the root of the checkout."""

from __future__ import annotations

from pathlib import Path

from qstate.errors import ERROR_CLASSES, Retry
from qstate.gateway.problems import STATUS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "failures.md"
HEAD = """# Failure codes

<!-- Made by tests/project/failure_reference.py from qstate.errors; a test keeps the two in step. -->

Why a request, or one key of a request, has no value. The code is all that crosses the network, with typed details;
the [wire protocol](protocol.md#failures) says which. In Python each code is a class of `qstate.errors`, a `QueryError`
with `code`, `details` and `retry`. What to do about each:
[Troubleshooting](../how-to/troubleshooting.md#when-a-query-of-the-state-fails).

The numbers never change. A code that a client does not know is to be treated as `INTERNAL`. HTTP is the status with
which [the gateway](rest.md) answers.

| code | name | class | HTTP | retry | meaning |
|---|---|---|---|---|---|
"""
TAIL = """
What a client or proxy does about a code, within the request's deadline and with growing pauses:

| retry | |
|---|---|
"""
_NAMES = {Retry.FATAL: "no", Retry.RETRY_HERE: "here", Retry.LOOK_UP_AGAIN: "look up again"}


def render() -> str:
    rows = [
        f"| {code} | `{code.name}` | `{found.__name__}` | {STATUS[code]} | {_NAMES[found.retry]} | {_text(found)} |\n"
        for code, found in sorted(ERROR_CLASSES.items())
    ]
    return HEAD + "".join(rows) + TAIL + "".join(f"| {_NAMES[retry]} | {retry.value} |\n" for retry in Retry)


def _text(error_class: type) -> str:
    return (error_class.__doc__ or "").strip().partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(render())
