"""Settings that a standby and its command refuse before they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qstate.cli import main as cli
from qstate.client import ClientTls, QueryableStateClient
from qstate.errors import ConfigError
from qstate.runtime.serving.query_ports import reachable
from qstate.standby import serve_checkpoint
from tests.certificates import Authority


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "sqlite"}, "unknown state backend: 'sqlite'"),
        ({"backend_options": {"block_cache_mib": 1}}, "unknown option of the backend 'heap'"),
        ({"interval_s": 0}, "interval between two looks must be seconds above zero"),
        ({"interval_s": float("nan")}, "interval between two looks must be seconds above zero"),
        ({"interval_s": "soon"}, "interval between two looks must be seconds above zero, got 'soon'"),
        ({"exactly_once": "no"}, "exactly_once must be true or false"),
        ({"host": "0.0.0.0"}, "would listen on 0.0.0.0 without authentication"),
        ({"host": "0.0.0.0", "auth_token": "x"}, "tls_certificate_file .*allow_token_without_tls=True"),
        ({"tls_key_file": "key.pem"}, "tls_key_file needs tls_certificate_file"),
        ({"proxy_ports": "many"}, "many"),
        ({"prots": "9069"}, "unknown setting 'prots'"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve_checkpoint(tmp_path, **settings)


def test_host_beyond_loopback_needs_a_token_or_a_decision(tmp_path: Path) -> None:
    in_the_open = {"auth_token": "open sesame", "allow_token_without_tls": True}
    for settings in (in_the_open, {"allow_open_query_port": True}):
        with serve_checkpoint(tmp_path, host="0.0.0.0", proxy_ports="0", server_ports="0", **settings) as standby:
            assert standby.address[0] != "0.0.0.0", "the address of a standby can be reached from other hosts"


def test_a_standby_serves_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = {"tls_certificate_file": Path(authority.issue("127.0.0.1")), "tls_ca_file": authority.file}
    with (
        serve_checkpoint(tmp_path, proxy_ports="0", server_ports="0", **settings) as standby,
        QueryableStateClient(*standby.address, tls=ClientTls(ca_file=authority.file)) as client,
    ):
        assert client.ping() > 0


def test_address_that_others_reach_is_no_wildcard() -> None:
    assert reachable(("10.1.2.3", 7)) == ("10.1.2.3", 7)
    host, port = reachable(("0.0.0.0", 7))
    assert (host != "0.0.0.0", port) == (True, 7)


def test_closing_is_idempotent_and_frees_the_ports(tmp_path: Path) -> None:
    standby = serve_checkpoint(tmp_path, proxy_ports="0", server_ports="0")
    ports = {"proxy_ports": str(standby.address[1]), "server_ports": str(standby.server_address[1])}
    standby.close()
    standby.close()
    with serve_checkpoint(tmp_path, **ports) as again:
        assert again.address[1] == int(ports["proxy_ports"])
        with pytest.raises(ConfigError):
            serve_checkpoint(tmp_path, **ports)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--descriptors", "json"], "takes MODULE:NAME"),
        (["--descriptors", "json:nothing"], "nothing"),
        (["--descriptors", "no_such_module:x"], "no_such_module"),
        (["--descriptors", "json:__all__"], "expected state descriptors, got 'dump'"),
        (["--backend-option", "block_cache_mib"], "takes NAME=VALUE"),
        (["--host", "0.0.0.0"], "without authentication"),
        (["--interval", "-1"], "seconds above zero"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_command_reports_a_setting_that_cannot_work_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.delenv("QSTATE_TOKEN", raising=False)
    assert cli.main(["serve", "/nowhere", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
