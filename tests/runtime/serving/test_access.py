"""Laws of rights on the query port: who may ask for what, what Describe and Locate show, and rules that change."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from qstate.client import ClientTls, QueryableStateClient
from qstate.errors import ConfigError, FailureCode, Forbidden, Unauthenticated
from qstate.protocol.connection import _ANSWER_OF
from qstate.protocol.messages import Changes, Description, Failure, Get, Ping
from qstate.runtime.serving.access import gate
from qstate.runtime.serving.access.access_file import MOST_BYTES, AccessFile
from qstate.runtime.serving.access.rights import RIGHT_OF, Grant, Principal, Right
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from qstate.tls import ServerTls
from tests.certificates import Authority
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import RawClient, failure_code, wait_until
from tests.runtime.serving.readers import DictReader, instance
from tests.runtime.serving.test_polls import poll, send_poll

JOBS = ("flights", "flights-test", "weather")
STATES = ("lastDelay", "lastGate", "secret")
PEER = b"the proxies' own"


def grants(rights: str, jobs: str = '["flights"]', states: str = '["last*"]') -> str:
    return f"rights = {rights}\njobs = {jobs}\nstates = {states}\n"


def principal(name: str, granted: str, *, certificates: str = "[]") -> str:
    """A principal whose token is its name."""
    digest = sha256(name.encode()).hexdigest()
    head = f'[principals.{name}]\ntokens = ["{digest}"]\ncertificates = {certificates}\n'
    return f"{head}[[principals.{name}.grants]]\n{granted}"


RULES = (
    principal("reader", grants('["read"]'))
    + principal("lister", grants('["describe"]', '["flights*"]', '["*"]'))
    + principal("scanner", grants('["scan", "subscribe"]'))
    + principal("admin", grants('["read"]', '["*"]', '["*"]'), certificates='["admin.example"]')
)


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    (tmp_path / "access.toml").write_text(RULES)
    return tmp_path / "access.toml"


@pytest.fixture
def quick_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.serving.endpoint.RELOAD_S", 0.01)


Serve = Callable[..., ClientProxy]


class Served:
    """Every job with every state, at one proxy and one state server."""

    def __init__(self, registry: StateRegistry, server: StateServer, proxy: ClientProxy) -> None:
        self.proxy, self.server = proxy, server
        self.ids: dict[tuple[str, str], bytes] = {}
        for job in JOBS:
            tables = {}
            for state in STATES:
                served = instance(DictReader({"JFK": 1.0}), job=job, name=state)
                self.ids[job, state] = registry.register(served)
                tables[state] = table(served, owner(served, server.address, self.ids[job, state]))
            proxy.set_location_oracle(job, TableOracle(**tables))


@pytest.fixture(params=[False, True], ids=["over a socket", "in process"])
def serve(
    request: pytest.FixtureRequest, registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> Callable[..., Served]:
    def start(**options: Any) -> Served:
        server = start_server(peer_token=PEER, **options)
        local = server if request.param else None
        return Served(registry, server, start_proxy(local, peer_token=PEER, **options))

    return start


def outcome(answer: object) -> str:
    return (
        "forbidden" if isinstance(answer, Failure) and answer.code == FailureCode.FORBIDDEN else type(answer).__name__
    )


#: Who may do what: principal -> type of request -> the jobs and states.
MATRIX = {
    "reader": {"get": {("flights", "lastDelay"), ("flights", "lastGate")}},
    "lister": {"get": set(), "locate": set(product(JOBS[:2], STATES))},
    "scanner": {"get": set(), "locate": {("flights", "lastDelay"), ("flights", "lastGate")}},
    "admin": {"get": set(product(JOBS, STATES))},
    "the job's own": {"get": set(product(JOBS, STATES))},
}


def test_the_matrix_of_rights_holds_at_proxies_and_state_servers(
    serve: Callable[..., Served], access_file: Path
) -> None:
    served = serve(access_file=str(access_file), token=b"the job's own")
    for name, allowed in MATRIX.items():
        may_get, may_locate = allowed["get"], allowed.get("locate", allowed["get"])
        with (
            RawClient(served.proxy.address, token=name.encode()) as proxy,
            RawClient(served.server.address, token=name.encode()) as server,
        ):
            for target in product(JOBS, STATES):
                found = [outcome(proxy.get(target, "JFK")), outcome(server.get(served.ids[target], "JFK"))]
                assert found == ["Values" if target in may_get else "forbidden"] * 2, (name, target)
                located = outcome(proxy.locate(*target))
                assert located == ("Location" if target in may_locate else "forbidden"), (name, target)
            listed = proxy.describe(None)
            assert isinstance(listed, Description)
            seen = {target[0] for target in may_locate}
            assert {entry["job"] for entry in listed.entries} == seen
            for job in JOBS:
                states = proxy.describe(job)
                if job in seen:
                    assert isinstance(states, Description)
                    assert {(job, entry["name"]) for entry in states.entries} == {
                        target for target in may_locate if target[0] == job
                    }
                else:
                    assert outcome(states) == "forbidden"


def test_a_poll_needs_the_right_to_subscribe(serve: Callable[..., Served], access_file: Path) -> None:
    served = serve(access_file=str(access_file))
    target = ("flights", "lastDelay")
    for name, code in (("reader", FailureCode.FORBIDDEN), ("scanner", FailureCode.UNSUPPORTED)):
        for address, asked in ((served.proxy.address, target), (served.server.address, served.ids[target])):
            with RawClient(address, token=name.encode()) as client:
                assert failure_code(poll(client, asked)) == code, "the reader has no changes, so UNSUPPORTED is a yes"


def test_what_is_not_there_is_forbidden_as_what_is(serve: Callable[..., Served], access_file: Path) -> None:
    served = serve(access_file=str(access_file))
    with RawClient(served.proxy.address, token=b"reader") as client:
        for target in (("no such job", "lastDelay"), ("flights", "no such state")):
            assert outcome(client.get(target, "JFK")) == outcome(client.locate(*target)) == "forbidden"
        assert failure_code(client.get(("flights", "lastNothing"), "JFK")) == FailureCode.UNKNOWN_STATE
        assert failure_code(client.get(b"\0" * 16, "JFK")) == FailureCode.UNSUPPORTED


@pytest.mark.parametrize("token", [None, b"", b"stranger", sha256(b"reader").hexdigest().encode()])
def test_a_client_that_the_rules_do_not_know_is_unauthenticated(
    serve: Callable[..., Served], access_file: Path, token: bytes | None
) -> None:
    served = serve(access_file=str(access_file))
    for address in (served.proxy.address, served.server.address):
        with RawClient(address, hello=False) as client:
            client.connection = type(client.connection)(token=token)
            client.sock.sendall(client.connection.start())
            assert client.receive_close_notice().code == FailureCode.UNAUTHENTICATED


@pytest.mark.parametrize("direct", [None, False, True])
def test_the_client_raises_the_typed_error(
    serve: Callable[..., Served], access_file: Path, direct: bool | None
) -> None:
    served = serve(access_file=str(access_file))
    with QueryableStateClient(*served.proxy.address, token="reader", direct=direct) as client:
        assert client.get("flights", "lastDelay", "JFK").value() == 1.0
        assert client.jobs() == ["flights"]
        with pytest.raises(Forbidden):
            client.get("weather", "lastDelay", "JFK")
        with pytest.raises(Forbidden):
            client.states("weather")
    with QueryableStateClient(*served.proxy.address, token="stranger") as client, pytest.raises(Unauthenticated):
        client.jobs()


def test_a_certificate_names_a_principal(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, tmp_path: Path, access_file: Path
) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(authority.issue("127.0.0.1"), client_ca_file=authority.file, require_client_certificate=False)
    options: Any = {"tls": tls, "access_file": str(access_file), "peer_token": PEER}
    server = start_server(**options)
    proxy = start_proxy(owner_tls=ClientTls(ca_file=authority.file), **options)
    Served(registry, server, proxy)

    def ask(file: str, token: str | None = None) -> float:
        known = ClientTls(ca_file=authority.file, certificate_file=file)
        with QueryableStateClient(*proxy.address, tls=known, token=token, direct=False) as client:
            return float(client.get("weather", "secret", "JFK").value())

    assert ask(authority.issue("admin.example", common_name="somebody")) == 1.0
    assert ask(authority.issue("elsewhere.example", common_name="admin.example")) == 1.0
    other = authority.issue("other.example")
    with pytest.raises(Unauthenticated):
        ask(other)
    assert ask(other, token="admin") == 1.0
    with pytest.raises(Forbidden):
        ask(other, token="reader")
    known = authority.issue("admin.example")
    assert ask(known) == 1.0
    with pytest.raises(Unauthenticated):
        ask(known, token="stranger")


def test_changed_rules_hold_for_open_connections(
    serve: Callable[..., Served], access_file: Path, quick_reload: None
) -> None:
    served = serve(access_file=str(access_file))
    target, secret = ("flights", "lastDelay"), ("flights", "secret")
    with (
        RawClient(served.proxy.address, token=b"reader") as client,
        RawClient(served.server.address, token=b"reader") as direct,
    ):
        assert outcome(client.get(target, "JFK")) == "Values"
        access_file.write_text(principal("reader", grants('["read"]', states='["secret"]')))
        wait_until(lambda: outcome(client.get(secret, "JFK")) == "Values", "taking over the new rules")
        assert outcome(client.get(target, "JFK")) == "forbidden"
        wait_until(lambda: outcome(direct.get(served.ids[target], "JFK")) == "forbidden", "taking them over, directly")
        replacement = access_file.with_suffix(".new")
        replacement.write_text(principal("another", grants('["read"]')))
        replacement.replace(access_file)
        wait_until(lambda: outcome(client.get(secret, "JFK")) == "forbidden", "forgetting the removed principal")
        assert outcome(client.describe(None)) == "forbidden"
        with RawClient(served.proxy.address, token=b"another") as other:
            assert outcome(other.get(target, "JFK")) == "Values"


@pytest.mark.parametrize("through_proxy", [True, False])
def test_a_poll_that_waits_gives_nothing_when_the_right_is_gone(
    through_proxy: bool,
    serve: Callable[..., Served],
    registry: StateRegistry,
    access_file: Path,
    quick_reload: None,
    tmp_path: Path,
) -> None:
    served, history = serve(access_file=str(access_file)), History(tmp_path / "checkpoint")
    found = replace(history.instances()[0], job="flights")
    names, state_id = ("flights", found.name), registry.register(found)
    located = table(found, owner(found, served.server.address, state_id))
    served.proxy.set_location_oracle("flights", TableOracle(**{found.name: located}))
    address, target = (served.proxy.address, names) if through_proxy else (served.server.address, state_id)
    with RawClient(address, token=b"scanner") as client:
        history.commit(0, put("JFK", 1))
        assert isinstance(poll(client, target), Changes)
        waiting = send_poll(client, target, from_epoch=1, wait_ms=30_000, deadline_ms=30_000)
        wait_until(lambda: sum(map(len, served.server._polls._waiting.values())) == 1, "a poll that waits")
        access_file.write_text(principal("scanner", grants('["describe"]')))
        wait_until(lambda: outcome(poll(client, target)) == "forbidden", "taking over the new rules")
        history.commit(1, put("JFK", 2))
        assert failure_code(client.answer_to(waiting)) == FailureCode.FORBIDDEN


def test_a_broken_file_keeps_the_old_rules_and_says_what_is_wrong(
    access_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "qstate.runtime.serving.access.gate")
    found = gate.Gate(str(access_file), token=None, peer_token=None)
    rules = found.rules
    for broken, says in (("[principals", "is no TOML"), ("", "has no principal"), (None, "No such file")):
        access_file.unlink()
        if broken is not None:
            access_file.write_text(broken)
        found.reload()
        assert found.rules is rules
        assert says in caplog.messages[-1] and caplog.messages[-1].endswith("the rules from before stay")
    access_file.write_text(RULES)
    found.reload()
    assert found.rules is not rules
    assert "took over" in caplog.messages[-1]
    rules = found.rules
    found.reload()
    assert found.rules is rules


def test_certificates_that_no_client_shows_are_a_warning(
    access_file: Path, tmp_path: Path, start_server: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("127.0.0.1")
    start_server(access_file=str(access_file), tls=ServerTls(certificate, client_ca_file=authority.file))
    assert not caplog.messages
    for tls in (None, ServerTls(certificate)):
        start_server(access_file=str(access_file), tls=tls)
        assert re.search(
            r"the access file .*access\.toml names certificates, .* tls_client_ca_file.*", caplog.messages[0]
        )
        caplog.clear()


DIGEST = "0" * 64
WRONG = {
    "is no TOML": "principals = ",
    "has no principal": "",
    "has 'principal'; expected principals": "[principal]",
    "principals must be a table": "principals = 3",
    "principals.a needs grants": f'[principals.a]\ntokens = ["{DIGEST}"]',
    "principals.a needs tokens or certificates": "[[principals.a.grants]]\n" + grants('["read"]'),
    "principals.a.tokens takes SHA-256": '[principals.a]\ntokens = ["secret"]\n[[principals.a.grants]]\n'
    + grants('["read"]'),
    "principals.a.tokens must be a list": '[principals.a]\ntokens = "x"\n[[principals.a.grants]]\n'
    + grants('["read"]'),
    "has 'write'; rights are read, scan, subscribe, describe": principal("a", grants('["write"]')),
    "principals.a.grants.rights must not be empty": principal("a", grants("[]")),
    "principals.a.grants.jobs must be a list": principal("a", 'rights = ["read"]\nstates = ["*"]\n'),
    "principals.a.grants has 'state'": principal("a", grants('["read"]') + 'state = ["*"]\n'),
    "principals.b has a token or certificate of principals.a": principal("a", grants('["read"]'), certificates='["c"]')
    + principal("b", grants('["read"]'), certificates='["c"]'),
    "has more than": " " * (MOST_BYTES + 1),
}


@pytest.mark.parametrize("says", WRONG)
def test_a_file_that_is_wrong_in_any_part_is_refused_as_a_whole(tmp_path: Path, says: str) -> None:
    (tmp_path / "access.toml").write_text(WRONG[says])
    with pytest.raises(ConfigError, match="the access file") as refused:
        AccessFile(str(tmp_path / "access.toml"))
    assert says in str(refused.value)


def test_a_wrong_file_at_the_start_is_an_error(start_server: ServerFactory, tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="cannot be read"):
            start_server(access_file=str(path))


@pytest.mark.parametrize(
    ("pattern", "fits", "not_these"),
    [
        ("*", ["", "a", "line\nbreak"], []),
        ("last*", ["last", "lastDelay"], ["Last", "alast", ""]),
        ("*.v[1]?", ["x.v[1]?"], ["x.v1a", "x.v[1]a"]),
        ("a|b", ["a|b"], ["a", "b"]),
    ],
)
def test_in_patterns_only_the_star_has_a_meaning(pattern: str, fits: list[str], not_these: list[str]) -> None:
    found = Principal("p", [Grant(frozenset([Right.READ]), ("job",), (pattern,))])
    assert [state for state in (*fits, *not_these) if found.permits(Get, "job", state)] == fits


def test_names_of_clients_do_not_fill_the_memory() -> None:
    found = Principal("p", [Grant(frozenset([Right.READ]), ("job",), ("*",))])
    for number in range(10_000):
        assert not found.permits(Get, f"job {number}", "state")
    assert found.permits.cache_info().currsize <= 4096


def test_every_request_about_a_state_has_a_right() -> None:
    about_no_state = {Ping}
    assert set(RIGHT_OF) == set(_ANSWER_OF) - about_no_state
    assert not any(Principal("p").permits(request, "job", "state") for request in RIGHT_OF)
