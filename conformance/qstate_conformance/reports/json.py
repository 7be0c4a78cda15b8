"""Outcomes as JSON: the report that other programs read, and from which the others can be made again.

Rules of this module: it writes and reads `{"format": 2, "outcomes": [...]}`, and writes lists of laws. New names may
come within a format; another meaning of a name needs another format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from qstate_conformance.laws import Law
from qstate_conformance.outcomes import Outcome

__all__ = ["FORMAT", "NotAReport", "read", "render", "render_laws"]

#: Since 2 a run that left laws out does not conform, whatever those that ran gave.
FORMAT = 2


class NotAReport(Exception):
    """A text that is no JSON report of this format."""


def render(outcomes: Sequence[Outcome]) -> str:
    """The report, with a newline at its end."""
    return json.dumps({"format": FORMAT, "outcomes": [outcome.to_json() for outcome in outcomes]}, indent=2) + "\n"


def render_laws(laws: Sequence[Law]) -> str:
    """The metadata of each law, with a newline at its end."""
    entries = [
        {
            "id": law.id,
            "area": law.area,
            "text": law.text,
            "requirements": law.requirements,
            "needs": sorted(capability.name.lower() for capability in law.needs),
            "proves": sorted(capability.name.lower() for capability in law.proves),
            "soak": law.soak,
        }
        for law in laws
    ]
    return json.dumps(entries, indent=2) + "\n"


def read(text: str) -> list[Outcome]:
    """The outcomes in a report. Raises `NotAReport`."""
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise NotAReport(f"the report has format {content['format']!r}, this suite reads {FORMAT}")
        return [Outcome.from_json(entry) for entry in content["outcomes"]]
    except (KeyError, TypeError, ValueError) as exc:
        raise NotAReport(f"not a JSON report of the conformance suite: {type(exc).__name__}: {exc}") from exc
