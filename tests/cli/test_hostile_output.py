"""Names, keys and values of others: no format lets a terminal obey them, and no format loses them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstate.cli import main as cli
from qstate.cli.output.tables import WIDEST, table
from qstate.cli.output.terminal import shown, width
from tests.cli.terminals import obeyed, shown_on_terminal
from tests.cli.test_command_line import run
from tests.project.served_job import serve

#: Clears the screen; sets a title; goes up a line; C1's CSI; right to left; a null; and two that other tables eat.
EVIL = "\x1b[2J \x1b]0;owned\x07 \x1b[1A \x9b31m \u202egnp \x00 \t\n =1+2"
#: A null cannot be in an argument.
NAME = EVIL.replace("\x00", "")
JOB, STATE = f"job{NAME}", f"state{NAME}"
KEYS = {EVIL: f"value{EVIL}", "=cmd()": "-1", 'a"b,c': "é"}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("hostile"), job=JOB, contents={STATE: KEYS}) as (host, port):
        yield f"{host}:{port}"


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
@pytest.mark.parametrize(
    "arguments",
    [["jobs"], ["states", JOB], ["scan", JOB, STATE], ["get", JOB, STATE, "=cmd()"]],
    ids=lambda one: one[0],
)
def test_a_terminal_gets_printable_characters_only(proxy: str, arguments: list[str], form: str) -> None:
    code, text = shown_on_terminal(*arguments, "--format", form, "--proxy", proxy, NO_COLOR="1")
    assert (code, obeyed(text)) == (cli.SUCCESS, set())
    assert arguments[0] == "get" or any(part in text for part in ("\\x1b[2J", "\\u001b[2J"))


def test_a_description_and_an_error_are_printable(proxy: str) -> None:
    described = shown_on_terminal("describe", JOB, STATE, "--proxy", proxy, NO_COLOR="1")
    unknown = shown_on_terminal("get", JOB, f"no{NAME}", "k", "--proxy", proxy, NO_COLOR="1")
    assert (described[0], unknown[0]) == (cli.SUCCESS, cli.ERROR)
    assert obeyed(described[1]) == obeyed(unknown[1]) == set()
    assert "\\x1b[2J" in described[1] and "\\x1b[2J" in unknown[1]


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_json_is_what_is_stored(proxy: str, form: str) -> None:
    text = run("scan", JOB, STATE, "--format", form, "--proxy", proxy).stdout
    records = json.loads(text) if form == "json" else list(map(json.loads, text.splitlines()))
    assert {record["key"]: record["value"] for record in records} == KEYS


def test_csv_in_a_file_is_what_is_stored(proxy: str) -> None:
    text = run("scan", JOB, STATE, "--format", "csv", "--proxy", proxy).stdout
    assert text.count("\x00") == 2
    text = text.replace("\x00", "")  # the reader of Python 3.10 refuses a null
    records = list(csv.DictReader(io.StringIO(text, newline="")))
    kept = {key.replace("\x00", ""): value.replace("\x00", "") for key, value in KEYS.items()}
    assert {record["key"]: record["value"] for record in records} == kept


def test_an_empty_text_is_a_record_of_its_own_in_csv(tmp_path: Path) -> None:
    with serve(tmp_path, contents={"notes": {"JFK": ""}}) as (host, port):
        text = run("get", "nyc", "notes", "JFK", "--format", "csv", "--proxy", f"{host}:{port}").stdout
    assert list(csv.DictReader(io.StringIO(text, newline=""))) == [{"value": ""}]


def test_a_table_has_a_line_for_each_key(proxy: str) -> None:
    lines = run("scan", JOB, STATE, "--proxy", proxy).stdout.splitlines()
    assert len(lines) == 1 + len(KEYS)


def test_a_long_cell_does_not_move_the_columns_of_others() -> None:
    lines = list(table([("KEY", "VALUE"), ("a", 1), ("日本", 2), ("x" * 99, 3)]))
    assert [line[-1] for line in lines] == ["E", "1", "2", "3"]
    assert (lines[1].index("1"), lines[2].index("2"), lines[3].index("3")) == (WIDEST + 2, WIDEST, 99 + 2)


def test_heads_are_bold_on_a_terminal_that_takes_colours(proxy: str) -> None:
    assert "\x1b[1mJOB\x1b[0m" in shown_on_terminal("jobs", "--proxy", proxy)[1]
    assert "\x1b" not in shown_on_terminal("jobs", "--proxy", proxy, TERM="dumb")[1]
    assert "\x1b" not in run("jobs", "--proxy", proxy).stdout


def test_an_empty_scan_is_a_sound_document(proxy: str) -> None:
    nothing = ("scan", JOB, STATE, "nothing", "--proxy", proxy)
    assert json.loads(run(*nothing, "--format", "json").stdout) == []
    assert run(*nothing, "--format", "csv").stdout == "key,namespace,epoch,value\n"


def test_text_is_printed_where_the_terminal_lacks_its_characters(proxy: str) -> None:
    answer = run("get", JOB, STATE, 'a"b,c', "--proxy", proxy, PYTHONIOENCODING="ascii")
    assert (answer.returncode, answer.stdout) == (cli.SUCCESS, "\\xe9\n")


@pytest.mark.parametrize(("text", "columns"), [("plain", 5), ("日本", 4), ("e\u0301", 1), ("é", 1)])
def test_width_is_that_on_a_terminal(text: str, columns: int) -> None:
    assert width(text) == columns


def test_printable_text_is_shown_as_it_is() -> None:
    assert shown("Zürich 日本 \\x1b") == "Zürich 日本 \\x1b"
    assert shown("\ud800") == "\\ud800"
