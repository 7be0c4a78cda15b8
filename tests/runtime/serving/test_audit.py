"""Laws of the audit log: who asked for what is in it once, what was refused too, and no key, value or token."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.client import ClientTls, QueryableStateClient
from qstate.errors import FailureCode, TlsFailed, Unauthenticated
from qstate.host.log_lines import JsonLines, LogLines
from qstate.runtime.serving.access.audit import LOGGER, MOST_ENTRIES, MOST_OF_ADDRESS, Audit, Entry
from qstate.tls import ServerTls
from tests.certificates import Authority
from tests.runtime.serving.conftest import ProxyFactory
from tests.runtime.serving.raw_client import RawClient, wait_until
from tests.runtime.serving.test_access import RULES, Served, access_file, serve

__all__ = ["access_file", "serve"]


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """What the log has, as its lines' facts."""
    caplog.set_level(logging.INFO, LOGGER)
    monkeypatch.setattr("qstate.runtime.serving.endpoint.INTERVAL_S", 0.01)
    return lambda: [record.audit for record in caplog.records if record.name == LOGGER]  # type: ignore[attr-defined]


def test_requests_and_refusals_are_counted_once_wherever_they_came_in(
    serve: Callable[..., Served], access_file: Path, audited: Callable[[], list[dict[str, Any]]]
) -> None:
    served = serve(access_file=str(access_file), audit_log=True)
    target = ("flights", "lastDelay")
    with RawClient(served.proxy.address, token=b"reader") as client:
        for _ in range(3):
            client.get(target, "JFK", "LGA")
        client.get(("flights", "secret"), "JFK")
        client.locate(*target)
        client.describe(None)
        client.describe("weather")
    with RawClient(served.server.address, token=b"reader") as client:
        client.get(served.ids[target], "JFK")
    with RawClient(served.proxy.address, hello=False) as stranger:
        stranger.sock.sendall(stranger.connection.start())
        stranger.receive_close_notice()

    def totals() -> dict[tuple[Any, ...], tuple[int, int]]:
        found: dict[tuple[Any, ...], tuple[int, int]] = {}
        for line in audited():
            key = (line["principal"], line["request"], line["job"], line["state"], line["refusal"])
            requests, keys = found.get(key, (0, 0))
            found[key] = requests + line["requests"], keys + line["keys"]
        return found

    expected = {
        ("reader", "Get", "flights", "lastDelay", ""): (4, 7),
        ("reader", "Get", "flights", "secret", "FORBIDDEN"): (1, 1),
        ("reader", "Locate", "flights", "lastDelay", ""): (1, 0),
        ("reader", "Describe", None, None, ""): (1, 0),
        ("reader", "Describe", "weather", None, "FORBIDDEN"): (1, 0),
        ("", "Hello", None, None, "UNAUTHENTICATED"): (1, 0),
    }
    wait_until(lambda: totals() == expected, "writing the audit log")
    assert {line["address"] for line in audited()} == {"127.0.0.1"}


def test_the_log_is_off_by_default(
    serve: Callable[..., Served], access_file: Path, audited: Callable[[], list[dict[str, Any]]]
) -> None:
    served = serve(access_file=str(access_file))
    with RawClient(served.proxy.address, token=b"reader") as client:
        client.get(("flights", "secret"), "JFK")
    served.proxy.shutdown()
    assert audited() == []


def test_what_was_counted_last_is_written_at_the_end(
    serve: Callable[..., Served],
    access_file: Path,
    audited: Callable[[], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qstate.runtime.serving.endpoint.INTERVAL_S", 3600.0)
    served = serve(access_file=str(access_file), audit_log=True)
    with RawClient(served.proxy.address, token=b"reader") as client:
        client.get(("flights", "secret"), "JFK")
    assert audited() == []
    served.proxy.shutdown()
    assert [line["refusal"] for line in audited()] == ["FORBIDDEN"]


def test_a_line_has_no_key_no_token_and_no_line_break(
    serve: Callable[..., Served], access_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    served = serve(access_file=str(access_file), audit_log=True)
    with RawClient(served.proxy.address, token=b"reader") as client:
        client.get(("flights", "lastDelay\nrefused: principal='admin'"), "a secret key")
    served.proxy.shutdown()
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(lines) == 1 and lines[0].startswith("permitted: principal='reader' address='127.0.0.1' request='Get'")
    assert "\n" not in lines[0] and "a secret key" not in lines[0]
    assert not any(digest in lines[0] for digest in RULES.split('"') if len(digest) == 64)


def test_a_certificate_names_its_client_where_everyone_may_do_everything(
    start_proxy: ProxyFactory, audited: Callable[[], list[dict[str, Any]]], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(authority.issue("127.0.0.1"), client_ca_file=authority.file)
    proxy = start_proxy(tls=tls, audit_log=True)
    known = ClientTls(authority.file, authority.issue("reader.example", common_name="reader"))
    with QueryableStateClient(*proxy.address, tls=known) as client:
        assert client.jobs() == []
    with QueryableStateClient(*proxy.address, tls=ClientTls(authority.file)) as client, pytest.raises(TlsFailed):
        client.jobs()
    proxy.shutdown()
    assert {(line["principal"], line["refusal"]) for line in audited()} == {("reader", ""), ("", "TLS_FAILED")}


def test_the_refusal_of_a_certificate_that_the_rules_do_not_know_has_its_name(
    start_proxy: ProxyFactory, audited: Callable[[], list[dict[str, Any]]], tmp_path: Path, access_file: Path
) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(authority.issue("127.0.0.1"), client_ca_file=authority.file)
    proxy = start_proxy(tls=tls, audit_log=True, access_file=str(access_file))
    known = ClientTls(authority.file, authority.issue("stranger.example", common_name="stranger"))
    with QueryableStateClient(*proxy.address, tls=known) as client, pytest.raises(Unauthenticated, match="certificate"):
        client.jobs()
    proxy.shutdown()
    assert [(line["principal"], line["refusal"]) for line in audited()] == [("stranger", "UNAUTHENTICATED")]


def test_the_fields_are_in_json_lines(audited: Callable[[], list[dict[str, Any]]], caplog: Any) -> None:
    audit = Audit()
    audit.record(Entry("reader", "10.0.0.1", "Get", "job", "state", 0), 2)
    audit.write()
    found = json.loads(JsonLines(LogLines("json", "job", "0")).format(caplog.records[-1]))
    assert (found["logger"], found["audit"]["principal"], found["audit"]["keys"]) == (LOGGER, "reader", 2)


def test_names_that_clients_choose_do_not_fill_the_log(audited: Callable[[], list[dict[str, Any]]]) -> None:
    audit = Audit()
    for number in range(3 * MOST_ENTRIES):
        address = f"10.0.{number % 8}.1"
        audit.record(Entry("reader", address, "Get", "job", f"state {number}", FailureCode.FORBIDDEN), 2)
    audit.write()
    lines = audited()
    assert len(lines) == MOST_ENTRIES + 1
    assert (lines[-1]["principal"], lines[-1]["requests"]) == ("(others)", 2 * MOST_ENTRIES)
    audit.write()
    assert len(audited()) == MOST_ENTRIES + 1


def test_one_address_does_not_hide_what_others_do(audited: Callable[[], list[dict[str, Any]]]) -> None:
    audit = Audit()
    for interval in range(2):
        for number in range(3 * MOST_ENTRIES):
            refusal = FailureCode.FORBIDDEN if number % 2 else 0
            audit.record(Entry("reader", "10.0.0.1", "Get", "job", f"state {number}", refusal), 2)
        audit.record(Entry("another", "10.0.0.2", "Get", "job", "state", 0), 3)
        audit.write()
        lines = audited()[-MOST_OF_ADDRESS - 3 :]
        assert len(audited()) == (interval + 1) * len(lines)
        assert (lines[-1]["principal"], lines[-1]["state"], lines[-1]["keys"]) == ("another", "state", 3)
        shared = [(line["requests"], line["refusal"]) for line in lines if line["principal"] == "(others)"]
        more = (3 * MOST_ENTRIES - MOST_OF_ADDRESS) // 2
        assert sorted(shared) == [(more, ""), (more, "FORBIDDEN")]
        assert {line["address"] for line in lines if line["principal"] == "(others)"} == {"10.0.0.1"}
