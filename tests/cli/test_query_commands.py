"""`qstate jobs`, `states` and `get` against a real served job."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.cli import main as cli
from qstate.cli.shell.session import Session
from qstate.errors import ConfigError, WrongKeyType
from qstate.keys import ColumnType, check_key
from qstate.tls import ServerTls
from qstate.values.text_forms import parse_key, parse_namespace, printable
from tests.certificates import Authority
from tests.cli.test_command_line import assert_one_line_error, run
from tests.closed_port import closed_port
from tests.project.served_job import CONTENTS, serve

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("served")) as (host, port):
        yield f"{host}:{port}"


def test_jobs_are_listed(proxy: str) -> None:
    assert run("jobs", "--proxy", proxy).stdout == "JOB\nnyc\n"
    assert json.loads(run("jobs", "--proxy", proxy, "--format", "json").stdout) == [{"job": "nyc"}]


def test_states_are_listed_with_kind_and_types(proxy: str) -> None:
    lines = run("states", "nyc", "--proxy", proxy).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *sorted(CONTENTS)]
    assert "byPlace" in lines[1]
    assert "string, bigint, binary" in lines[1]
    listed = json.loads(run("states", "nyc", "--proxy", proxy, "--format", "json").stdout)
    assert {state["name"]: state["kind"] for state in listed}["visits"] == "map"


@pytest.mark.parametrize("state", ["lastTemperature", "visits", "lastDelays", "totalDistance", "meanDelay"])
def test_value_of_every_kind_is_printed(proxy: str, state: str) -> None:
    answer = run("get", "nyc", state, "JFK", "--proxy", proxy, "--format", "json")
    assert (answer.returncode, answer.stderr) == (cli.SUCCESS, "")
    assert json.loads(answer.stdout) == CONTENTS[state][None]["JFK"]


def test_what_a_token_may_not_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = f"""
        [principals.one]
        tokens = ["{sha256(b"one").hexdigest()}"]
        [[principals.one.grants]]
        rights = ["describe"]
        jobs = ["nyc"]
        states = ["visits"]
    """
    (tmp_path / "access.toml").write_text(rules)
    with serve(tmp_path, access_file=str(tmp_path / "access.toml"), peer_token=b"proxies") as (host, port):
        settings = {"QSTATE_PROXY": f"{host}:{port}", "QSTATE_TOKEN": "one"}
        described = run("describe", "nyc", "visits", "--format", "json", **settings)
        assert (described.returncode, described.stderr) == (cli.SUCCESS, "")
        assert json.loads(described.stdout)["keys"] is None
        for command in ("get", "watch"):
            answer = run(command, "nyc", "lastTemperature", "JFK", **settings)
            assert_one_line_error(answer, "rules do not permit this", "lastTemperature")
        monkeypatch.setenv("QSTATE_TOKEN", "one")
        shell = Session(cli._parser, cli.run, Namespace(profile=None, proxy=[f"{host}:{port}"]))
        shell.execute("use nyc lastTemperature")
        assert "rules do not permit this" in capsys.readouterr().err


def test_another_proxy_is_asked_when_one_does_not_answer(proxy: str) -> None:
    with closed_port() as port:
        nobody = f"127.0.0.1:{port}"
        for proxies in ([nobody, proxy], [proxy, nobody]):
            options = [part for one in proxies for part in ("--proxy", one)]
            assert run("get", "nyc", "lastTemperature", "JFK", *options).stdout == "71.06\n"


def test_value_is_printed_as_text_without_json(proxy: str) -> None:
    assert run("get", "nyc", "lastTemperature", "JFK", "--proxy", proxy).stdout == "71.06\n"


def test_namespace_has_a_value_of_its_own(proxy: str) -> None:
    answer = run("get", "nyc", "lastTemperature", "JFK", "--proxy", proxy, "--namespace", "2013-07-18")
    assert answer.stdout == "100.04\n"


@pytest.mark.parametrize(
    ("state", "options", "shown"),
    [
        ("visits", ["--entry", "LAX", "--entry", "BOS"], {"LAX": 2}),
        ("visits", ["--size"], 2),
        ("lastDelays", ["--range", "1:"], [-1, 0]),
    ],
)
def test_a_part_of_a_value_is_printed(proxy: str, state: str, options: list[str], shown: Any) -> None:
    answer = run("get", "nyc", state, "JFK", *options, "--proxy", proxy, "--format", "json")
    assert (answer.returncode, json.loads(answer.stdout)) == (cli.SUCCESS, shown)


def test_a_part_with_nothing_in_it_has_exit_code_1(proxy: str) -> None:
    answer = run("get", "nyc", "visits", "JFK", "--entry", "BOS", "--proxy", proxy)
    assert (answer.returncode, answer.stdout, answer.stderr) == (cli.NO, "", "")


def test_key_of_several_columns_is_one_argument_each(proxy: str) -> None:
    answer = run("get", "nyc", "byPlace", "JFK", "7", "ff", "--proxy", proxy, "--format", "json")
    assert json.loads(answer.stdout) == "AAE="


def test_key_without_a_value_has_exit_code_1(proxy: str) -> None:
    answer = run("get", "nyc", "lastTemperature", "LGA", "--proxy", proxy)
    assert (answer.returncode, answer.stdout, answer.stderr) == (cli.NO, "", "")
    assert run("get", "nyc", "lastTemperature", "LGA", "--proxy", proxy, "--format", "json").stdout == "null\n"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["states", "no-such-job"], ["no job of that name", "no-such-job"]),
        (["get", "nyc", "noSuchState", "JFK"], ["no queryable state of that name", "lastTemperature"]),
        (["get", "nyc", "byPlace", "JFK"], ["3 columns (string, bigint, binary)"]),
        (["get", "nyc", "byPlace", "JFK", "seven", "ff"], ["whole number", "'seven'"]),
        (["get", "nyc", "byPlace", "JFK", "7", "xx"], ["hexadecimal", "'xx'"]),
        (["get", "nyc", "lastTemperature", "JFK", "--namespace", "1.5"], ["key", "float"]),
        (["get", "nyc", "lastTemperature", "JFK", "--isolation", "committed"], ["does not support that"]),
        (["get", "nyc", "lastTemperature", "JFK", "--max-staleness", "-1"], ["max_staleness_s", "-1.0"]),
        (["get", "nyc", "lastTemperature", "JFK", "--wait", "-1"], ["wait_s", "-1.0"]),
        (["get", "nyc", "lastDelays", "JFK", "--range", "5"], ["START:STOP", "'5'"]),
        (["get", "nyc", "lastDelays", "JFK", "--entry", "a"], ["does not support that", "list"]),
        (["get", "nyc", "", "JFK"], ["state must be a name"]),
        (["states", ""], ["job must be a name"]),
        (["jobs", "--timeout", "0"], ["timeout_s must be seconds above zero"]),
    ],
)
def test_a_failed_query_is_one_line(proxy: str, arguments: list[str], parts: list[str]) -> None:
    assert_one_line_error(run(*arguments, "--proxy", proxy), *parts)


def test_demands_are_made(proxy: str) -> None:
    reached = run(
        "get", "nyc", "lastTemperature", "JFK", "--proxy", proxy, "--min-epoch", "0", "--max-staleness", "0.5"
    )
    assert (reached.returncode, reached.stdout) == (cli.SUCCESS, "71.06\n")
    later = run("get", "nyc", "lastTemperature", "JFK", "--proxy", proxy, "--min-epoch", "99", "--wait", "0.5")
    assert_one_line_error(later, "earlier epoch than min_epoch", "min_epoch=99")
    assert_one_line_error(
        run("get", "nyc", "lastTemperature", "JFK", "--min-epoch", "-1", "--proxy", proxy), "min_epoch"
    )


def test_fallback_is_asked_for_committed_values_only(tmp_path: Path) -> None:
    with closed_port() as closed, serve(tmp_path, committed=True) as (host, port):
        gone = f"127.0.0.1:{closed}"
        ways = ("--proxy", gone, "--fallback", gone, "--fallback", f"{host}:{port}")
        answer = run("get", "nyc", "lastTemperature", "JFK", "--isolation", "committed", "--timeout", "30", *ways)
        assert (answer.returncode, answer.stdout) == (cli.SUCCESS, "71.06\n"), answer.stderr
        assert "lastTemperature" in run("states", "nyc", *ways).stdout
        live = run("get", "nyc", "lastTemperature", "JFK", "--timeout", "0.3", *ways)
        assert_one_line_error(live, "cannot connect to")
    assert_one_line_error(
        run("get", "nyc", "lastTemperature", "JFK", "--fallback", "standby"), "--fallback", "HOST:PORT"
    )


def test_url_instead_of_an_address_is_refused() -> None:
    assert_one_line_error(run("jobs", "--proxy", "http://localhost:9069"), "not a URL", "'http://localhost'")


@pytest.mark.parametrize("address", ["localhost", "localhost:http", ":9069", "localhost:0", "localhost:70000"])
def test_invalid_address_is_refused(address: str) -> None:
    assert_one_line_error(run("jobs", "--proxy", address), "HOST:PORT", repr(address))


def test_an_address_without_a_listener_is_one_line() -> None:
    with closed_port() as port:
        assert_one_line_error(run("jobs", "--proxy", f"127.0.0.1:{port}", "--timeout", "1"), "cannot connect to")


def test_unknown_host_is_one_line() -> None:
    assert_one_line_error(run("jobs", "--proxy", "no-such-host.invalid:9069", "--timeout", "1"))


def test_token_is_taken_from_the_environment(tmp_path: Path) -> None:
    with serve(tmp_path, token=b"secret") as (host, port):
        assert run("jobs", "--proxy", f"{host}:{port}", QSTATE_TOKEN="secret").stdout == "JOB\nnyc\n"
        assert_one_line_error(run("jobs", "--proxy", f"{host}:{port}", QSTATE_TOKEN="wrong"), "valid token")
        assert_one_line_error(run("jobs", "--proxy", f"{host}:{port}"), "valid token")


def test_certificates_are_options(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(authority.issue("127.0.0.1"), client_ca_file=authority.file)
    own = authority.issue("operator")
    with serve(tmp_path, tls=tls) as (host, port):
        proxy = ("--proxy", f"{host}:{port}")
        assert run("jobs", *proxy, "--tls-ca", authority.file, "--tls-certificate", own).stdout == "JOB\nnyc\n"
        assert_one_line_error(run("jobs", *proxy, "--tls-ca", authority.file), "client's certificate")
        assert_one_line_error(run("jobs", *proxy, "--tls"), "certificate is not accepted")
        assert_one_line_error(run("jobs", *proxy), "TLS connections only", "--tls-ca")


@given(text=st.text(st.characters(codec="utf-8")), number=INT64, data=st.binary())
def test_every_key_can_be_written(text: str, number: int, data: bytes) -> None:
    types = [ColumnType.STRING, ColumnType.BIGINT, ColumnType.BINARY]
    assert parse_key([text, str(number), data.hex()], types) == (text, number, data)
    assert parse_key([text], types[:1]) == text


@pytest.mark.parametrize(
    ("kind", "text", "key"),
    [
        ("boolean", "true", True),
        ("date", "2013-07-18", date(2013, 7, 18)),
        ("timestamp", "2013-07-18T05:00:00Z", datetime(2013, 7, 18, 5, tzinfo=timezone.utc)),
        ("timestamp", "2013-07-18T06:00:00.5+01:00", datetime(2013, 7, 18, 5, 0, 0, 500_000, timezone.utc)),
        ("decimal(38,2)", "1.5", Decimal("1.50")),
        ("decimal(38,0)", "-7", Decimal(-7)),
    ],
)
def test_a_key_of_another_type_is_read_from_its_text(kind: str, text: str, key: Any) -> None:
    found = parse_key([text], [ColumnType(kind)])
    assert found == key
    check_key(found, [ColumnType(kind)])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("boolean", "1"),
        ("date", "18.7.2013"),
        ("timestamp", "noon"),
        ("decimal(38,2)", "1.555"),
        ("decimal(38,2)", "x"),
    ],
)
def test_a_text_that_does_not_fit_its_column_is_refused_with_its_form(kind: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"the key column is of type .*: write it as"):
        parse_key([text], [ColumnType(kind)])


def test_a_namespace_may_have_dates_moments_and_decimals() -> None:
    text = '[{"date": "2013-07-18"}, {"timestamp": "2013-07-18T05:00:00Z"}, {"decimal": "1.50"}, true]'
    moment = datetime(2013, 7, 18, 5, tzinfo=timezone.utc)
    assert parse_namespace(text) == (date(2013, 7, 18), moment, Decimal("1.50"), True)
    for wrong in ('{"date": 5}', '{"day": "2013-07-18"}', '{"date": "today"}'):
        with pytest.raises(ConfigError, match="a namespace cannot be"):
            parse_namespace(wrong)


def test_number_beyond_64_bits_is_not_a_key() -> None:
    with pytest.raises(WrongKeyType):
        parse_key([str(2**63)], [ColumnType.BIGINT])
    with pytest.raises(ConfigError):
        parse_key([], [ColumnType.BIGINT])


@given(st.one_of(st.text(st.characters(codec="utf-8")), INT64, st.tuples(st.text(st.characters(codec="utf-8")), INT64)))
def test_every_namespace_can_be_written_as_json(namespace: Any) -> None:
    assert parse_namespace(json.dumps(namespace)) == namespace


@pytest.mark.parametrize(
    ("text", "namespace"), [("2013-07-18", "2013-07-18"), ("1374105600000", 1374105600000), ('["a", 1]', ("a", 1))]
)
def test_namespace_is_json_or_plain_text(text: str, namespace: Any) -> None:
    assert parse_namespace(text) == namespace


def test_types_that_json_lacks_are_printed_as_json() -> None:
    value = {
        "a": b"\x00\x01",
        "at": datetime(2013, 7, 18, tzinfo=timezone.utc),
        "on": [date(2013, 7, 18), Decimal("1.5")],
    }
    assert json.loads(json.dumps(printable(value))) == {
        "a": "AAE=",
        "at": "2013-07-18T00:00:00+00:00",
        "on": ["2013-07-18", "1.5"],
    }


def test_a_scan_prints_a_key_and_its_value_a_line(proxy: str) -> None:
    held = {str(key): value for key, value in CONTENTS["lastTemperature"][None].items()}
    answer = run("scan", "nyc", "lastTemperature", "--proxy", proxy, "--no-namespace")
    assert answer.stderr == ""
    assert [line.split() for line in answer.stdout.splitlines()] == [
        ["KEY", "NAMESPACE", "EPOCH", "VALUE"],
        *([key, "-", "0", str(held[key])] for key in held),
    ]
    spaces = run("scan", "nyc", "lastTemperature", "JFK", "--proxy", proxy).stdout.splitlines()
    assert ["JFK", "2013-07-18", "0", "100.04"] in [line.split() for line in spaces]


def test_a_scan_prints_json_lines(proxy: str) -> None:
    lines = run("scan", "nyc", "byPlace", "JFK", "7", "--proxy", proxy, "--format", "jsonl").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert {"key": ["JFK", 7, "ff"], "namespace": None, "value": "AAE=", "epoch": found[0]["epoch"]} in found


def test_a_scan_prints_keys_or_their_number(proxy: str) -> None:
    keys = run("scan", "nyc", "lastTemperature", "--begins", "J", "--keys", "--proxy", proxy, "--no-namespace")
    assert keys.stdout == "KEY  NAMESPACE\nJFK  -\n"
    assert run("scan", "nyc", "lastTemperature", "--count", "--proxy", proxy, "--begins", "no such").stdout == "0\n"
    assert run("scan", "nyc", "lastTemperature", "--limit", "1", "--proxy", proxy).stdout.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["byPlace", "JFK", "seven"], "whole number"),
        (["lastTemperature", "JFK", "--begins", "J"], "not both"),
        (["lastTemperature", "--count", "--limit", "3"], "--limit"),
        (["lastTemperature", "--namespace", "2013-07-18", "--no-namespace"], "not allowed with"),
        (["noSuchState"], "no queryable state of that name"),
    ],
)
def test_a_scan_that_cannot_be_is_refused_in_a_line(proxy: str, arguments: list[str], part: str) -> None:
    assert_one_line_error(run("scan", "nyc", *arguments, "--proxy", proxy), part)
