"""Options: what is refused says what to do."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import ConfigError
from qstate.keys import ColumnType
from qstate.spark.data_source.live import Selection
from qstate.spark.data_source.options import SourceOptions

LIVE = {"job": "alerts", "state": "last"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give the state"),
        ({"state": "last"}, "give the job"),
        ({**LIVE, "colour": "red"}, "no option 'colour'; it has address, "),
        ({**LIVE, "token": "secret"}, "token_file"),
        ({**LIVE, "epoch": "3"}, "only for stored state"),
        ({**LIVE, "storage.anon": "true"}, "only for stored state"),
        ({**LIVE, "changeStartEpoch": "3"}, "changeStartEpoch: only for the change feed; add"),
        ({**LIVE, "changestartepoch": "-1", "readchangefeed": "true"}, "changeStartEpoch must be the number"),
        ({**LIVE, "colour": "red"}, "allow_token_without_tls, changeEndEpoch, .* readChangeFeed, state"),
        ({**LIVE, "readChangeFeed": "yes"}, "readChangeFeed must be true or false"),
        ({**LIVE, "epoch": "3", "operator": "sums"}, "^epoch, operator: only for stored state"),
        ({**LIVE, "keys": "[]", "prefix": "J"}, "not both"),
        ({**LIVE, "isolation": "dirty"}, "live or committed"),
        (
            {"state": "last", "path": "x", "isolation": "live"},
            "isolation: not for stored state, only for a running job$",
        ),
        ({"state": "last", "path": "x", "readChangeFeed": "true"}, "readChangeFeed: not for stored .* a running job$"),
        ({"state": "last", "path": "x", "prefix": "J"}, r"prefix: not for stored .*; select rows with where\(...\)$"),
        ({"state": "last", "path": "x", "epoch": "new"}, "number of an epoch"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        SourceOptions.of(given)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("address", "localhost", "HOST:PORT"),
        ("address", "localhost:\u0661\u0661", "HOST:PORT"),
        ("fallback", "a:1,b", "HOST:PORT"),
        ("timeout_s", "soon", "number of seconds"),
        ("tls", "perhaps", "true or false"),
        ("token_file", "/nowhere", "token_file /nowhere cannot be read"),
    ],
)
def test_a_client_that_cannot_be(option: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SourceOptions.of({**LIVE, option: text}).client()


def test_a_token_is_read_from_its_file_and_never_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("open sesame\n")
    options = SourceOptions.of({**LIVE, "TOKEN_FILE": str(file), "address": "far.example:9069"})
    with pytest.raises(ConfigError, match="without TLS"):
        options.client()
    monkeypatch.setenv("QSTATE_TOKEN", "open sesame")
    assert b"sesame" not in pickle.dumps(options) and "sesame" not in repr(options)
    SourceOptions.of(LIVE).client().close()


def test_a_relative_path_is_that_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SourceOptions.of({"state": "last", "path": "state"}).location == os.fspath(tmp_path / "state")
    for path in ("file:/data/state", "file:///data/state"):
        assert SourceOptions.of({"state": "last", "path": path}).location == "/data/state"
    assert SourceOptions.of({"state": "last", "path": "s3://bucket/state"}).location == "s3://bucket/state"


TEXT, PLACE = [ColumnType.STRING], [ColumnType.STRING, ColumnType.BIGINT]


@pytest.mark.parametrize(
    ("given", "types", "wanted"),
    [
        ({}, TEXT, (None, None, ...)),
        ({"keys": '["JFK", "LGA", "JFK"]'}, TEXT, (("JFK", "LGA"), None, ...)),
        ({"keys": '[["EWR", 1545]]', "namespace": "null"}, PLACE, ((("EWR", 1545),), None, None)),
        ({"prefix": "J"}, PLACE, (None, "J", ...)),
        ({"prefix": '["EWR"]', "namespace": '{"date": "2013-07-18"}'}, PLACE, None),
        ({"prefix": "0f"}, [ColumnType.BINARY], (None, b"\x0f", ...)),
    ],
)
def test_selections(given: dict[str, str], types: list[ColumnType], wanted: Any) -> None:
    found = Selection.of(SourceOptions.of({**LIVE, **given}), types)
    if wanted is None:
        assert (found.prefix, str(found.namespace)) == (("EWR",), "2013-07-18")
    else:
        assert (found.keys, found.prefix, found.namespace) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keys": "JFK"}, "list of keys in JSON"),
        ({"keys": "[]"}, "list of keys in JSON"),
        ({"keys": '[["EWR", "x"]]'}, "of type bigint"),
        ({"keys": "[" * 9000}, "list of keys in JSON"),
        ({"prefix": "15"}, "list of the first columns"),
    ],
)
def test_selections_that_no_key_fits(given: dict[str, str], message: str) -> None:
    types = [ColumnType.BIGINT] if "prefix" in given else PLACE
    with pytest.raises(ConfigError, match=message):
        Selection.of(SourceOptions.of({**LIVE, **given}), types)
