"""Outcomes as one self-contained page: for each area a matrix of subjects and laws, made to be published.

Rules of this module: the page needs no network, no script and no other file. Everything that comes from an outcome
is escaped. Colour never stands alone: every cell has a sign and a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from qstate_conformance.laws import AREAS
from qstate_conformance.outcomes import INTERRUPTED, LawOutcome, Outcome, Verdict

__all__ = ["render"]

_SIGNS = {
    Verdict.PASSED: "✓",
    Verdict.FAILED: "✗",
    Verdict.WAIVED: "w",
    Verdict.SKIPPED: "-",
    Verdict.NOT_RUN: "·",
}
_MEANINGS = {
    Verdict.PASSED: "the law holds",
    Verdict.FAILED: "the law is broken",
    Verdict.WAIVED: "the law is broken, and a waiver says why",
    Verdict.SKIPPED: "does not apply to what the subject claims",
    Verdict.NOT_RUN: "was not run",
}
_PLURALS = {"backend": "Backends", "server": "Servers", "client": "Clients"}


def render(outcomes: Sequence[Outcome]) -> str:
    """The page, with a newline at its end."""
    return "\n".join(_page(outcomes)) + "\n"


def _page(outcomes: Sequence[Outcome]) -> Iterator[str]:
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8"><title>qstate conformance</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>\n{style}</style></head><body>"
    yield "<h1>qstate conformance</h1>"
    yield f'<p class="legend">{_legend()}</p>'
    numbered = list(enumerate(outcomes))
    for area in AREAS:
        columns = [(number, outcome) for number, outcome in numbered if outcome.run.area == area]
        if columns:
            yield f"<h2>{_PLURALS[area]}</h2>"
            yield from _summary(columns)
            yield from _matrix(columns)
    yield from _notes(numbered)
    yield "</body></html>"


def _legend() -> str:
    return " &ensp; ".join(f"{_badge(verdict)} {escape(_MEANINGS[verdict])}" for verdict in Verdict)


def _badge(verdict: Verdict) -> str:
    word = verdict.value
    return f'<span class="{_class(verdict)}" title="{word}">{_SIGNS[verdict]}<span class="word"> {word}</span></span>'


def _class(verdict: Verdict) -> str:
    return verdict.value.replace(" ", "-")


def _summary(columns: Sequence[tuple[int, Outcome]]) -> Iterator[str]:
    yield '<table class="summary"><thead><tr><th>subject</th><th>verdict</th>'
    yield "".join(f"<th>{verdict.value}</th>" for verdict in Verdict)
    yield "<th>capabilities</th><th>run</th></tr></thead><tbody>"
    for _, outcome in columns:
        run = outcome.run
        verdict = _badge(_whole_verdict(outcome))
        yield f"<tr><th>{escape(run.subject)}</th><td>{verdict} {_conclusion(outcome)}</td>"
        yield "".join(f"<td>{len(outcome.of(verdict))}</td>" for verdict in Verdict)
        yield f"<td>{_claims(outcome)}</td><td>{_circumstances(outcome)}</td></tr>"
    yield "</tbody></table>"


def _whole_verdict(outcome: Outcome) -> Verdict:
    if outcome.conforms:
        return Verdict.PASSED
    return Verdict.FAILED if outcome.exit_code == 1 else Verdict.NOT_RUN


def _conclusion(outcome: Outcome) -> str:
    share = f" (partial run: {escape(outcome.partial)})" if outcome.partial else ""
    if outcome.exit_code == INTERRUPTED:
        return f"interrupted{share}"
    if outcome.exit_code != 0:
        return f"does not conform{share}"
    return f"keeps the laws that ran{share}" if outcome.partial else "conforms"


def _claims(outcome: Outcome) -> str:
    claimed = [entry for entry in outcome.capabilities if entry.claimed]
    return "<br>".join(f"{escape(entry.name)}: {'proved' if entry.proved else 'not proved'}" for entry in claimed)


def _circumstances(outcome: Outcome) -> str:
    run = outcome.run
    facts = [f"profile {run.profile}, seed {run.seed}, {outcome.seconds:.0f} s"]
    facts += [f"{name} {value}" for name, value in run.versions.items()]
    return f'<span class="facts">{escape("; ".join(facts))}</span>'


def _matrix(columns: Sequence[tuple[int, Outcome]]) -> Iterator[str]:
    found = [{law.law: law for law in outcome.laws} for _, outcome in columns]
    laws = {name: law for column in found for name, law in column.items()}
    yield '<table class="matrix"><thead><tr><th>law</th><th>checks</th>'
    yield "".join(f"<th>{escape(outcome.run.subject)}</th>" for _, outcome in columns) + "</tr></thead>"
    yield "<tbody>"
    group = None
    for name, law in laws.items():
        if name.split(".")[1] != group:
            group = name.split(".")[1]
            heading = escape(group.replace("_", " "))
            yield f'<tr><th class="group" colspan="{len(columns) + 2}">{heading}</th></tr>'
        cells = "".join(
            f"<td>{_cell(number, column.get(name))}</td>" for (number, _), column in zip(columns, found, strict=True)
        )
        rules = escape(", ".join(law.requirements))
        yield f'<tr><td class="law"><code>{escape(name)}</code><br>{escape(law.text)}</td><td>{rules}</td>{cells}</tr>'
    yield "</tbody></table>"


def _cell(number: int, law: LawOutcome | None) -> str:
    if law is None:
        return ""
    if law.verdict in (Verdict.FAILED, Verdict.WAIVED):
        return f'<a href="#{_anchor(number, law)}">{_badge(law.verdict)}</a>'
    if law.reason:
        return f'<span title="{escape(law.reason)}">{_badge(law.verdict)}</span>'
    return _badge(law.verdict)


def _anchor(number: int, law: LawOutcome) -> str:
    return escape(f"{number}-{law.law}")


def _notes(numbered: Sequence[tuple[int, Outcome]]) -> Iterator[str]:
    """Details below the matrix: problems of a run, failures with their programs, waivers with their reasons."""
    for number, outcome in numbered:
        noted = [*outcome.of(Verdict.FAILED), *outcome.of(Verdict.WAIVED)]
        if not noted and not outcome.problems:
            continue
        yield f"<h2>{escape(outcome.run.subject)}</h2>"
        if outcome.problems:
            yield "<ul>" + "".join(f"<li>{escape(problem)}</li>" for problem in outcome.problems) + "</ul>"
        for law in noted:
            yield from _note(number, law)


def _note(number: int, law: LawOutcome) -> Iterator[str]:
    yield f'<section id="{_anchor(number, law)}"><h3>{_badge(law.verdict)} <code>{escape(law.law)}</code></h3>'
    yield f"<p>{escape(law.text)}</p>"
    if law.verdict is Verdict.WAIVED:
        yield f"<p>Waived: {escape(law.reason)} ({_link(law.link)})</p>"
    yield f"<pre>{escape(law.message)}</pre><pre>{escape(law.reproduction)}</pre></section>"


def _link(address: str) -> str:
    """A link only where it leads to the web: a waiver file could say `javascript:`."""
    text = escape(address)
    return f'<a href="{text}">{text}</a>' if address.startswith(("https://", "http://")) else text
