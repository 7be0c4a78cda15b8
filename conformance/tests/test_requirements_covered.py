"""Every MUST has a law, and every law checks a MUST.

The MUSTs of a backend are in the docstrings of `qstate.backends.contract` (`T1:` ...), of the value parts (`V1:` ...)
and of the byte store below its adapter (`S1:` ...), those of the wire protocol in docs/reference/protocol.md
(`**P-GET-1**` ...). A rule of the protocol that says only SHOULD or MAY needs no law and may have one.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from qstate.backends import contract, value_parts
from qstate.backends.byte_stores import store as byte_store
from qstate_conformance.laws import AREAS, Area, Law, find_laws

PROTOCOL = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")

_IN_A_DOCSTRING = re.compile(r"^ *([A-Z]\d+): (.*)$", re.MULTILINE)
#: A rule is one item of a list, which may continue in indented lines.
_ON_THE_PAGE = re.compile(r"^- \*\*(P-[A-Z]+-\d+)\*\* (.*(?:\n  .*)*)$", re.MULTILINE)

#: Rules that bind one side, or of which the other side's part cannot be seen from outside. All others bind both.
_ALONE = """
    server P-HELLO-2 P-HELLO-3 P-HELLO-6 P-REQ-2 P-REQ-3 P-REQ-4 P-DEADLINE-1 P-DEADLINE-3 P-GET-1 P-GET-2 P-GET-3
    server P-GET-4 P-GET-5 P-GET-6 P-GET-7 P-GET-8 P-LOC-1 P-PING-1 P-BROKEN-1 P-BROKEN-3 P-VERSION-3
    server P-CLOSE-4 P-CLOSE-5 P-CLOSE-6 P-GET-14 P-REQ-8 P-REQ-9 P-GET-15 P-GET-16 P-GET-17 P-DESC-4 P-MSG-10
    server P-POLL-1 P-POLL-2 P-POLL-3 P-POLL-4 P-POLL-5 P-POLL-6 P-POLL-7 P-POLL-8 P-POLL-11 P-KEY-8
    client P-HELLO-1 P-HELLO-4 P-HELLO-7 P-REQ-1 P-REQ-6 P-REQ-7 P-DEADLINE-4 P-GET-9 P-GET-10 P-LOC-2 P-LOC-3
    client P-DESC-2 P-FAIL-1 P-FAIL-2 P-RETRY-1 P-RETRY-2 P-RETRY-3 P-BROKEN-2 P-ROUTE-1 P-ROUTE-2 P-VALUE-2 P-VALUE-3
    server P-CANCEL-1 P-CANCEL-2
    client P-CANCEL-3
    client P-VALUE-4 P-VERSION-2 P-DEADLINE-5 P-DESC-3 P-RETRY-6 P-DESC-5 P-LOC-4
    client P-HELLO-8 P-TLS-1 P-TLS-2 P-SCAN-8 P-SCAN-11 P-SCAN-12
    server P-SCAN-1 P-SCAN-2 P-SCAN-3 P-SCAN-4 P-SCAN-5 P-SCAN-6 P-SCAN-7 P-SCAN-9 P-SCAN-10
    server P-TLS-4 P-PART-1 P-PART-2 P-PART-3 P-PART-6 P-PART-7 P-DESC-6
    client P-PART-8 P-DESC-7 P-POLL-12
"""
_LINES = [line.split() for line in _ALONE.strip().splitlines()]
SERVER_ALONE = {rule for side, *rules in _LINES for rule in rules if side == "server"}
CLIENT_ALONE = {rule for side, *rules in _LINES for rule in rules if side == "client"}
#: Rules for those who write the next version of the page; no program can break them.
BIND_NO_PROGRAM = {"P-VERSION-4"}


def contract_rules() -> dict[str, str]:
    """The rules in the docstrings of the contract and of the byte store, by id."""
    sources = map(inspect.getsource, (contract, value_parts, byte_store))
    return dict(_IN_A_DOCSTRING.findall("".join(sources)))


def protocol_rules() -> dict[str, str]:
    """The rules on the protocol's page, by id."""
    return dict(_ON_THE_PAGE.findall(PROTOCOL))


def protocol_musts(area: Area) -> list[str]:
    """The ids of the MUSTs of the protocol that bind this side."""
    others = {"server": CLIENT_ALONE, "client": SERVER_ALONE}[area]
    musts = [rule for rule, text in protocol_rules().items() if "MUST" in text]
    return [rule for rule in musts if rule not in others and rule not in BIND_NO_PROGRAM]


def cited(area: Area) -> set[str]:
    return {requirement for law in find_laws(area) for requirement in law.requirements}


def test_the_rules_are_found_where_they_are_written() -> None:
    assert {"T1", "T6", "R1", "R4", "B1", "B7"} <= contract_rules().keys()
    assert {"P-FRAME-1", "P-GET-10", "P-VERSION-4"} <= protocol_rules().keys()
    assert len(protocol_rules()) == PROTOCOL.count("\n- **P-")


def test_the_sides_are_attributed_to_rules_that_exist() -> None:
    assert protocol_rules().keys() >= SERVER_ALONE | CLIENT_ALONE | BIND_NO_PROGRAM
    assert not SERVER_ALONE & CLIENT_ALONE
    for rule, text in protocol_rules().items():
        says = (bool(re.search(r"server[^.:;]* MUST", text)), bool(re.search(r"[Cc]lient[^.:;]* MUST", text)))
        assert not (rule in SERVER_ALONE and says == (False, True)), f"{rule} binds the client: {text}"
        assert not (rule in CLIENT_ALONE and says == (True, False)), f"{rule} binds the server: {text}"


@pytest.mark.parametrize("rule", sorted(contract_rules()))
def test_every_must_of_the_contract_has_a_law(rule: str) -> None:
    assert rule in cited("backend"), f"no backend law cites {rule}: {contract_rules()[rule]}"


@pytest.mark.parametrize("rule", protocol_musts("server"))
def test_every_must_of_the_protocol_that_binds_servers_has_a_law(rule: str) -> None:
    assert rule in cited("server"), f"no server law cites {rule}: {protocol_rules()[rule]}"


@pytest.mark.parametrize("rule", protocol_musts("client"))
def test_every_must_of_the_protocol_that_binds_clients_has_a_law(rule: str) -> None:
    assert rule in cited("client"), f"no client law cites {rule}: {protocol_rules()[rule]}"


@pytest.mark.parametrize("area", AREAS)
def test_every_law_cites_rules_that_exist(area: Area) -> None:
    rules = contract_rules() if area == "backend" else protocol_rules()
    unknown = {law.id: rule for law in find_laws(area) for rule in law.requirements if rule not in rules}
    assert not unknown


@pytest.mark.parametrize("area", AREAS)
def test_every_law_has_an_id_of_its_own_and_is_one_sentence(area: Area) -> None:
    laws = find_laws(area)
    assert laws
    assert len({law.id for law in laws}) == len(laws)
    assert not [law.id for law in laws if not says_one_thing(law)]


def says_one_thing(law: Law) -> bool:
    return law.text.endswith(".") and len(law.text) <= 160
