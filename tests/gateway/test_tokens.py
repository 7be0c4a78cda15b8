"""Who may read what through a gateway: what the caller's own token may do at the query port, and nothing more."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from qstate.cli import main as cli
from qstate.client import ClientTls
from qstate.errors import ConfigError
from qstate.gateway import server, upstream
from qstate.gateway.server import GatewayServer
from qstate.gateway.settings import GatewaySettings
from qstate.tls import ServerTls
from tests.certificates import Authority
from tests.cli.test_command_line import assert_one_line_error, run
from tests.gateway.running_gateway import STATE, RunningGateway, running_gateway
from tests.project.served_job import serve
from tests.runtime.serving.raw_client import wait_until

READER = """
[principals.{name}]
tokens = ["{digest}"]
[[principals.{name}.grants]]
rights = ["{right}"]
jobs = ["nyc"]
states = ["last*"]
"""
Guarded = tuple[RunningGateway, tuple[str, int]]
OTHER = "/v1/jobs/nyc/states/visits"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningGateway, tuple[str, int]]]:
    """A gateway in front of a query port with an access file."""
    directory = tmp_path_factory.mktemp("guarded")
    people = {"reader": "read", "scanner": "scan", "follower": "subscribe"}
    rules = "".join(
        READER.format(name=name, right=right, digest=sha256(name.encode()).hexdigest())
        for name, right in people.items()
    )
    (directory / "access.toml").write_text(rules)
    served = serve(directory, committed=True, access_file=str(directory / "access.toml"), peer_token=b"proxies")
    with served as proxy, running_gateway(proxy) as gateway:
        yield gateway, proxy


def test_a_caller_without_a_token_is_asked_for_one(guarded: Guarded) -> None:
    for headers in ({}, bearer("wrong")):
        answer = httpx.get(f"{guarded[0].url}{STATE}/value?key=JFK", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == 'Bearer realm="qstate"'


@pytest.mark.parametrize("given", ["Basic abc", "Bearer", f"Bearer {'x' * 5000}"])
def test_what_is_no_token_is_refused(guarded: Guarded, given: str) -> None:
    assert httpx.get(f"{guarded[0].url}/v1/jobs", headers={"Authorization": given}).status_code == 400


def test_each_caller_has_the_rights_of_its_own_token(guarded: Guarded) -> None:
    url = guarded[0].url
    expected = {
        "reader": {"value?key=JFK": 200, "entries": 403, "changes?from_epoch=0": 403},
        "scanner": {"value?key=JFK": 403, "entries": 200, "changes?from_epoch=0": 403},
    }
    for name, paths in expected.items():
        for path, status in paths.items():
            assert httpx.get(f"{url}{STATE}/{path}", headers=bearer(name)).status_code == status, (name, path)
        # It does not learn whether there is a state that it may not see.
        for state in (OTHER, "/v1/jobs/nyc/states/nothing"):
            assert httpx.get(f"{url}{state}/value?key=JFK", headers=bearer(name)).status_code == 403
        states = httpx.get(f"{url}/v1/jobs/nyc/states", headers=bearer(name)).json()["states"]
        assert [state["name"] for state in states] == ["lastDelays", "lastTemperature"]
        assert httpx.get(f"{url}/v1/jobs/nyc", headers=bearer(name)).status_code == 200
    assert httpx.get(f"{url}{STATE}/value?key=JFK").status_code == 401


def test_clients_of_tokens_are_bounded_and_replaced(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MOST_CLIENTS", 1)
    url = f"{guarded[0].url}{STATE}/value?key=JFK"
    for name in ("reader", "scanner", "reader"):
        assert httpx.get(url, headers=bearer(name)).status_code == (200 if name == "reader" else 403)


def test_beyond_loopback_the_query_port_must_ask_for_tokens(guarded: Guarded, tmp_path: Path) -> None:
    with serve(tmp_path) as (host, port):
        options = ("--host", "0.0.0.0", "--port", "0", "--allow-token-without-tls")
        assert_one_line_error(
            run("gateway", "--proxy", f"{host}:{port}", *options), "without a token", "open-query-port"
        )
    with running_gateway(guarded[1], host="0.0.0.0", allow_token_without_tls=True) as gateway:
        url = f"http://127.0.0.1:{gateway.port}{STATE}/value?key=JFK"
        assert httpx.get(url, headers=bearer("reader")).status_code == 200
        assert httpx.get(url).status_code == 401


def test_a_query_port_that_opens_later_is_not_served_either(tmp_path: Path) -> None:
    with serve(tmp_path / "before") as (host, port):
        pass
    with running_gateway((host, port), host="0.0.0.0", allow_token_without_tls=True) as gateway:
        url = f"http://127.0.0.1:{gateway.port}/v1/jobs"
        assert httpx.get(url, timeout=20).status_code == 503
        with serve(tmp_path / "after", ports=f"{port},0"):
            answer = httpx.get(url, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


def test_a_query_port_that_is_replaced_by_an_open_one_is_served_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "NEW_S", 0.0)
    monkeypatch.setattr(upstream, "KNOWN_S", 0.0)
    with serve(tmp_path / "before", token=b"secret") as (host, port):
        gateway = RunningGateway((host, port), host="0.0.0.0", allow_token_without_tls=True)
        url = f"http://127.0.0.1:{gateway.port}/v1/jobs"
        assert httpx.get(url, headers=bearer("secret")).status_code == 200
    try:
        with serve(tmp_path / "after", ports=f"{port},0"):
            for headers in ({}, bearer("another")):
                answer = httpx.get(url, headers=headers, timeout=20)
                assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
            # A token that was accepted before is refused soon.
            wait_until(lambda: httpx.get(url, headers=bearer("secret")).status_code == 403, "the refusal")
    finally:
        gateway.stop()


def test_a_token_may_end_in_any_byte(tmp_path: Path) -> None:
    token = "voil\u00e0"
    with serve(tmp_path, token=token.encode()) as proxy, running_gateway(proxy) as gateway:
        answer = httpx.get(f"{gateway.url}/v1/jobs", headers={b"Authorization": b"Bearer " + token.encode()})
        assert answer.status_code == 200


def test_beyond_loopback_the_gateway_must_have_no_rights_by_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    rules = READER.format(name="gateway", right="read", digest="0" * 64)
    rules = rules.replace("[[principals", 'certificates = ["gateway.example"]\n[[principals')
    (tmp_path / "access.toml").write_text(rules)
    tls = ServerTls(authority.issue("127.0.0.1"), client_ca_file=authority.file)
    options = {"access_file": str(tmp_path / "access.toml"), "peer_token": b"proxies", "tls": tls}
    by_proxy = ClientTls(authority.file, authority.issue("127.0.0.1"))
    with serve(tmp_path, owner_tls=by_proxy, **options) as proxy:
        for name, good in (("other.example", True), ("gateway.example", False)):
            shown = ClientTls(authority.file, authority.issue(name))
            settings = {"host": "0.0.0.0", "allow_token_without_tls": True, "upstream_tls": shown}
            if good:
                with running_gateway(proxy, **settings) as gateway:
                    assert httpx.get(f"http://127.0.0.1:{gateway.port}/v1/jobs").status_code == 401
            else:
                with pytest.raises(ConfigError, match="without a token"):
                    GatewayServer(GatewaySettings([proxy], ports="0", **settings)).run()


def test_tokens_do_not_go_over_a_network_in_the_open() -> None:
    assert not GatewaySettings([("10.0.0.5", 9069)]).passes_tokens
    assert GatewaySettings([("10.0.0.5", 9069)], allow_token_without_tls=True).passes_tokens
    assert GatewaySettings([("127.0.0.1", 9069)]).passes_tokens
    with pytest.raises(ConfigError, match="without TLS"):
        GatewaySettings([("127.0.0.1", 9069)], host="0.0.0.0")


def test_both_ways_may_be_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(authority.issue("127.0.0.1", "localhost"))
    client_tls = ClientTls(authority.file)
    with (
        serve(tmp_path, token=b"secret", tls=tls, owner_tls=client_tls) as proxy,
        running_gateway(proxy, tls=tls, upstream_tls=client_tls) as gateway,
        httpx.Client(verify=ssl.create_default_context(cafile=authority.file)) as client,
    ):
        assert client.get(f"{gateway.url}{STATE}/value?key=JFK", headers=bearer("secret")).json()["value"] == 71.06


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RENEW_S", 0.01)
    authority = Authority(tmp_path)
    own, shown = tmp_path / "own.pem", tmp_path / "shown.pem"
    for file in (own, shown):
        file.write_text(Path(authority.issue("127.0.0.1", expired=True)).read_text())
    query_port = ServerTls(authority.issue("127.0.0.1"), client_ca_file=authority.file)
    owner_tls = ClientTls(authority.file, authority.issue("127.0.0.1"))
    upstream_tls = ClientTls(authority.file, str(shown))
    with (
        serve(tmp_path, token=b"secret", tls=query_port, owner_tls=owner_tls) as proxy,
        running_gateway(proxy, tls=ServerTls(str(own)), upstream_tls=upstream_tls) as gateway,
    ):

        def ask() -> int:
            trusted = ssl.create_default_context(cafile=authority.file)
            trusted.set_alpn_protocols(["http/1.1"])
            return httpx.get(f"{gateway.url}/v1/jobs", headers=bearer("secret"), verify=trusted).status_code

        def status() -> int:
            try:
                return ask()
            except httpx.ConnectError:
                return 0

        with pytest.raises(httpx.ConnectError, match="expired"):
            ask()
        own.write_text(Path(authority.issue("127.0.0.1")).read_text())
        wait_until(lambda: status() > 0, "the gateway's renewed certificate")
        assert ask() != 200  # the query port refuses the gateway's clients
        shown.write_text(Path(authority.issue("gateway.example")).read_text())
        wait_until(lambda: status() == 200, "the renewed certificate of the gateway's clients")
        own.write_text("no certificate")
        shown.write_text("no certificate")
        assert ask() == 200


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("--host 0.0.0.0", "--certificate"),
        ("--cors-origin shop.example", "origin"),
        ("--max-streams 0", "max_streams"),
        ("--max-connections-per-address -1", "max_connections_per_address"),
        ("--job-metrics nowhere", "metrics"),
        ("--proxy nowhere", "HOST:PORT"),
        ("--key nowhere", "give --certificate"),
    ],
)
def test_a_mistake_of_the_command_line_is_one_line(
    arguments: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", *arguments.split()]) == cli.ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line
