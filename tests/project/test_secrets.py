"""Laws of secrets: no shown text holds one, and a token may come from a file."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.checkpoint.storage.locations import is_url, open_directory
from qstate.config import JobConfig
from qstate.errors import ConfigError
from qstate.protocol.limits import MAX_TOKEN
from qstate.protocol.messages import Hello
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.runtime.control.addresses import Bootstrap
from qstate.runtime.control.auth_token import with_token
from qstate.runtime.control.readings import url_of
from qstate.runtime.relay.relay import JobTicket
from qstate.runtime.routing.pipelined_connection import ConnectionSettings
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.query_ports import endpoint_options
from qstate.setting_values import without_password
from qstate.spark.command_lines import is_on_a_command_line
from qstate.spark.plan.relay_task import RelayTask

SECRET = "hush-a-secret"
CONFIG = JobConfig(auth_token=SECRET, checkpoint_storage_options={"secret": SECRET})
TICKET = JobTicket("job", ("host", 1), SECRET.encode(), 1.0, 1)
HOLDERS: list[object] = [
    CONFIG,
    TICKET,
    Bootstrap("job", 0, 1, ("host", 1), SECRET.encode(), CONFIG, "/x", "", 0, 1, True),
    RelayTask(TICKET, "uid", "declaration", 1, ("key",)),
    EndpointOptions(token=SECRET.encode()),
    endpoint_options(CONFIG, "proxy", "127.0.0.1", SECRET.encode()),
    ConnectionSettings(SECRET.encode()),
    Hello((1,), SECRET.encode(), "client"),
]


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: type(holder).__name__)
def test_objects_with_a_secret_do_not_show_it(holder: object) -> None:
    for shown in (repr(holder), str(holder), f"{holder}", repr([holder]), repr({1: (holder,)})):
        assert SECRET not in shown
    assert SECRET.encode() in pickle.dumps(holder), "it is there"


def test_a_client_does_not_show_its_token() -> None:
    with QueryableStateClient("127.0.0.1", 1, token=SECRET) as client:
        assert SECRET not in repr(client) and SECRET not in repr(vars(client))


def test_every_field_that_may_hold_a_secret_is_kept_from_being_shown() -> None:
    names = ("secret", "token", "auth_token", "checkpoint_storage_options")
    fields = [field for holder in HOLDERS if dataclasses.is_dataclass(holder) for field in dataclasses.fields(holder)]
    assert not [field.name for field in fields if field.name in names and field.repr]


@pytest.mark.parametrize("setting", ["auth_token", "checkpoint_storage_options"])
def test_a_wrong_setting_is_not_shown_when_it_may_be_a_secret(setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        JobConfig(**{setting: [SECRET]})  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_token_comes_from_a_file(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "token").write_bytes(SECRET.encode() + end)
    found = with_token(JobConfig(auth_token_file=tmp_path / "token", slots=2))  # type: ignore[arg-type]
    assert (found.auth_token, found.auth_token_file, found.slots) == (SECRET, "", 2)
    assert with_token(JobConfig(auth_token=SECRET)).auth_token == SECRET
    (tmp_path / "link").symlink_to("token")  # as secrets of Kubernetes are
    assert with_token(JobConfig.from_spark({"spark.qstate.auth.token.file": str(tmp_path / "link")})) == found.merged(
        slots=1
    )


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text(SECRET)
    assert with_token(JobConfig(auth_token_file="~/token")).auth_token == SECRET


@pytest.mark.parametrize(
    "location",
    [
        f"s3://key:{SECRET}@bucket/state",
        f"s3://key:{SECRET}/and+more@bucket/state",
        f"s3://key:more:{SECRET}@bucket/state",
        f"simplecache::s3://key:{SECRET}@bucket/state",
        f"s3:/key:{SECRET}@bucket",
        f"s3://key:{SECRET}@[bucket/state",
        f"s3://key:{SECRET}@bucket\0/state",
        f"memory://key:{SECRET}@state",
    ],
)
def test_a_location_with_a_password_is_refused_and_does_not_show_it(location: str) -> None:
    with pytest.raises(ConfigError, match=r"s3|memory") as refused:
        open_directory(location)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("location", ["abfs://container@account/state", "s3://bucket/a@b", "s3://host:9000/state:1@2"])
def test_a_user_without_a_password_is_in_a_location(location: str) -> None:
    assert is_url(location)
    assert without_password("s3://bucket/state") == "s3://bucket/state"


@pytest.mark.parametrize(
    "address", [f"u:{SECRET}@host:1", f"http://u:{SECRET}@host:1/metrics", f"http://u:{SECRET}@[x"]
)
def test_an_address_of_metrics_with_a_password_is_refused_and_does_not_show_it(address: str) -> None:
    with pytest.raises(ConfigError, match="an address of metrics is") as refused:
        url_of(address)
    assert SECRET not in str(refused.value)


WRONG: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b"\n"),
    "too long": lambda path: path.write_bytes(b"x" * (MAX_TOKEN + 1)),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a FIFO": lambda path: os.mkfifo(path),
    "a directory": lambda path: path.mkdir(),
    "no text": lambda path: path.write_bytes(SECRET.encode() + b"\xff"),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_a_file_without_a_token_is_refused_by_name(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "token")
    with pytest.raises(ConfigError, match=r"auth_token_file \S+/token (cannot be read|must hold)") as refused:
        with_token(JobConfig(auth_token_file=str(tmp_path / "token")))
    assert SECRET not in str(refused.value)


def test_two_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both set"):
        with_token(JobConfig(auth_token=SECRET, auth_token_file=str(tmp_path / "token")))


@pytest.mark.parametrize("argument", [f"spark.qstate.auth.token={SECRET}", SECRET])
def test_a_secret_on_a_command_line_is_found(argument: str) -> None:
    assert not is_on_a_command_line(SECRET)
    with subprocess.Popen([sys.executable, "-c", "input()", "--conf", argument], stdin=subprocess.PIPE) as process:
        assert is_on_a_command_line(SECRET)
        assert not is_on_a_command_line(SECRET[1:]), "only as a whole"
        assert process.stdin is not None
        process.communicate(b"\n")
