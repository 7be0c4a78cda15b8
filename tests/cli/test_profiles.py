"""Where addresses, TLS files and tokens come from: options, then the environment, then a profile."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstate.cli import main as cli
from qstate.cli.connection import connection_of, inherit
from qstate.cli.profiles import SETTINGS
from qstate.errors import ConfigError
from tests.cli.test_command_line import assert_one_line_error, run
from tests.project.served_job import serve

TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("served"), token=TOKEN.encode()) as (host, port):
        yield f"{host}:{port}"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of profiles, still missing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("PROFILE", *map(str.upper, SETTINGS)):
        monkeypatch.delenv(f"QSTATE_{name}", raising=False)
    (tmp_path / "qstate").mkdir()
    return tmp_path / "qstate" / "profiles.toml"


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def arguments(**given: object) -> Namespace:
    return Namespace(**{"profile": None, **given})


def test_a_profile_has_addresses_and_the_token(config: Path, proxy: str) -> None:
    write(config, f'[flights]\nproxy = "{proxy}"\ntoken = "{TOKEN}"\n')
    assert run("jobs", "--profile", "flights").stdout == "JOB\nnyc\n"
    assert run("jobs", QSTATE_PROFILE="flights").stdout == "JOB\nnyc\n"


def test_files_are_beside_the_profile(config: Path, proxy: str) -> None:
    write(config.parent / "flights.token", TOKEN)
    write(config, f'[default]\nproxy = ["{proxy}"]\ntoken_file = "flights.token"\n', 0o644)
    assert run("get", "nyc", "lastTemperature", "JFK").stdout == "71.06\n"


def test_options_come_before_the_environment_before_the_profile(config: Path) -> None:
    write(config, '[default]\nproxy = "profile:1"\nfallback = "profile:2"\ntimeout = 3\n')
    environment = {"QSTATE_PROXY": "environment:1, environment:2", "QSTATE_TIMEOUT": "4"}
    found = connection_of(arguments(timeout=5.0), environment)
    assert found.proxies == [("environment", 1), ("environment", 2)]
    assert (found.fallback, found.timeout_s) == ([("profile", 2)], 5.0)
    assert connection_of(arguments(proxy=["option:1"]), environment).proxies == [("option", 1)]
    assert connection_of(arguments(), {}).proxies == [("profile", 1)]


def test_a_profile_s_token_goes_to_its_own_proxies_only(config: Path) -> None:
    write(config, f'[default]\nproxy = "profile:1"\ntoken = "{TOKEN}"\n')
    assert connection_of(arguments(), {}).token == TOKEN
    assert connection_of(arguments(proxy=["elsewhere:1"]), {}).token is None
    assert connection_of(arguments(), {"QSTATE_PROXY": "elsewhere:1"}).token is None
    assert connection_of(arguments(fallback=["elsewhere:1"]), {}).token is None
    assert connection_of(arguments(), {"QSTATE_FALLBACK": "elsewhere:1"}).token is None
    assert connection_of(arguments(), {"QSTATE_TOKEN": "other"}).token == "other"


def test_a_profile_of_a_line_replaces_what_a_session_has(config: Path) -> None:
    write(config, f'[payments]\nproxy = "payments:1"\ntoken = "{TOKEN}"\n')
    session = arguments(proxy=["session:1"], token_file="session.token", timeout=3.0)
    line = arguments(profile="payments")
    inherit(line, session)
    found = connection_of(line, {})
    assert (found.proxies, found.token) == ([("payments", 1)], TOKEN)
    line = arguments()
    inherit(line, session)
    assert (line.proxy, line.token_file) == (["session:1"], "session.token")


def test_no_connection_shows_its_token(config: Path) -> None:
    assert TOKEN not in repr(connection_of(arguments(), {"QSTATE_TOKEN": TOKEN}))


def test_without_profiles_there_are_defaults(config: Path) -> None:
    found = connection_of(arguments(), {})
    assert (found.proxies, found.token, found.tls) == ([("localhost", 9069)], None, None)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_token_that_others_can_read_is_refused(config: Path, mode: int) -> None:
    write(config, f'[default]\ntoken = "{TOKEN}"\n', mode)
    answer = run("jobs")
    assert_one_line_error(answer, "other users can read it", "chmod 600", str(config))
    assert TOKEN not in answer.stderr


def test_profiles_that_others_can_change_are_refused(config: Path) -> None:
    write(config, '[default]\nproxy = "elsewhere:1"\n', 0o666)
    assert_one_line_error(run("jobs"), "other users can change it")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_profiles_of_another_user_are_refused(config: Path) -> None:
    write(config, '[default]\nproxy = "elsewhere:1"\n', 0o644)
    os.chown(config, 12345, 12345)
    assert_one_line_error(run("jobs"), "another user")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[other]\n", ["no profile 'mine'", "the profiles are: other"]),
        ("proxy = 'a:1'\n[mine]\n", ["'proxy' is not in a profile", "[default]"]),
        ("mine = 'a:1'\n", ["'mine'", "[default]"]),
        ("[mine]\nproxxy = 'a:1'\n", ["unknown setting 'proxxy'", "valid are: proxy, fallback"]),
        ("[mine]\nproxy = 9069\n", ["proxy must be addresses", "localhost:9069"]),
        ("[mine]\nproxy = 'nowhere'\n", ["HOST:PORT", "'nowhere'"]),
        ("[mine]\ntls = 'yes'\n", ["tls must be true or false"]),
        ("[mine]\ntimeout = true\n", ["timeout must be a number"]),
        ("[mine]\ntoken = 'a'\ntoken_file = 'b'\n", ["both set"]),
        ("[mine]\ntoken_file = 'b'\n", ["token file", "cannot be read"]),
        ("[mine]\ntoken = ''\n", ["token is empty", "leave it out"]),
        ("[mine\n", ["is no TOML"]),
        ("#" * 70_000, ["more than 65536 bytes"]),
    ],
)
def test_a_mistake_in_a_profile_is_said_in_one_line(config: Path, text: str, parts: list[str]) -> None:
    write(config, text)
    with pytest.raises(ConfigError) as raised:
        connection_of(arguments(profile="mine"), {})
    for part in parts:
        assert part in str(raised.value)


def test_settings_above_the_first_profile_are_a_mistake_also_when_none_is_named(config: Path) -> None:
    write(config, "proxy = 'a:1'\n")
    assert_one_line_error(run("jobs"), "'proxy' is not in a profile", "[default]")


def test_a_profile_without_a_file_is_a_mistake(config: Path) -> None:
    assert_one_line_error(run("jobs", "--profile", "flights"), "there are no profiles", str(config))


def test_a_variable_that_is_no_value_of_its_setting_is_refused(config: Path) -> None:
    for variable, value in (("TIMEOUT", "soon"), ("TLS", "maybe")):
        with pytest.raises(ConfigError, match=f"QSTATE_{variable} must be"):
            connection_of(arguments(), {f"QSTATE_{variable}": value})
    assert connection_of(arguments(), {"QSTATE_TLS": "true"}).tls is not None


def test_two_tokens_of_the_environment_are_a_mistake(config: Path) -> None:
    with pytest.raises(ConfigError, match="both set"):
        connection_of(arguments(), {"QSTATE_TOKEN": "a", "QSTATE_TOKEN_FILE": "b"})


def test_a_token_may_come_from_a_file_that_an_option_names(config: Path, proxy: str, tmp_path: Path) -> None:
    write(tmp_path / "token", TOKEN + "\n")
    answer = run("jobs", "--proxy", proxy, "--token-file", str(tmp_path / "token"), QSTATE_TOKEN="wrong")
    assert (answer.returncode, answer.stdout) == (cli.SUCCESS, "JOB\nnyc\n")


def test_a_home_that_there_is_not_has_no_profiles_and_no_files(config: Path, proxy: str) -> None:
    nobody = "~no-user-of-this-name"
    given = {"QSTATE_PROXY": proxy, "QSTATE_TOKEN": TOKEN}
    assert run("jobs", **given, XDG_CONFIG_HOME=nobody).stdout == "JOB\nnyc\n"
    for option in ("--token-file", "--tls-ca"):
        assert_one_line_error(run("jobs", option, f"{nobody}/file", QSTATE_PROXY=proxy), nobody, "No such file")
    write(config, f'[default]\ntoken_file = "{nobody}/token"\n')
    assert_one_line_error(run("jobs"), nobody, "No such file")
