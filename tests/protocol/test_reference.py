"""The protocol reference, the golden frames and the code agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import FailureCode, Retry
from qstate.keys import MAX_KEY_COLUMNS, MAX_PARALLELISM_LIMIT, decode_key, encode_key, key_group, key_hash
from qstate.protocol import limits, messages
from qstate.protocol.codec import decode, encode, frame
from qstate.protocol.connection import BadRequest, BrokenConnection, ClientConnection, Opened, ServerConnection
from qstate.protocol.fields import INTEGER_OPTIONS, OPTIONS, SCAN_INTEGER_OPTIONS, SCAN_OPTIONS
from qstate.protocol.messages import Failure, Ping
from qstate.serializers import MessagePackSerializer
from qstate_conformance.corpus import corpus, value_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/protocol.md").read_text(encoding="utf-8")
CORPUS = corpus()
FRAMES = {entry["name"]: entry for entry in CORPUS["frames"]}
RETRY_WORDS = {
    Retry.FATAL: "fatal",
    Retry.RETRY_HERE: "retry here",
    Retry.LOOK_UP_AGAIN: "look up again",
}


def message_of(entry: dict[str, Any]) -> Any:
    return getattr(messages, entry["type"])(**value_of(entry["fields"]))


def section(title: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    start = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert start, f"the page has no section {title!r}"
    rest = PAGE[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str, first: str) -> Iterator[list[str]]:
    """The cells of the table whose header starts with the column `first`, row by row."""
    table = re.search(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)", text, re.MULTILINE)
    assert table, f"no table starts with the column {first!r}"
    for line in table[1].splitlines():
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def hexadecimal(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


# --- golden frames -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", CORPUS["frames"], ids=lambda entry: entry["name"])
def test_the_codec_writes_and_reads_each_golden_frame(entry: dict[str, Any]) -> None:
    message, golden = message_of(entry), bytes.fromhex(entry["frame"])
    assert frame(encode(message)) == golden
    assert decode(golden[4:]) == message
    assert type(decode(golden[4:])) is type(message)


@pytest.mark.parametrize("entry", CORPUS["accepted"], ids=lambda entry: entry["name"])
def test_other_forms_of_a_message_are_read_too(entry: dict[str, Any]) -> None:
    golden = bytes.fromhex(entry["frame"])
    assert int.from_bytes(golden[:4], "big") == len(golden) - 4
    assert decode(golden[4:]) == message_of(entry)
    assert encode(message_of(entry)) != golden[4:] or entry["name"].startswith("unknown")


def test_every_message_has_a_golden_frame() -> None:
    assert {entry["type"] for entry in CORPUS["frames"]} == {form.message.__name__ for form in messages.FORMS}


def opened(**options: Any) -> ServerConnection:
    server = ServerConnection(**options)
    (event,) = server.receive(ClientConnection().start())
    assert isinstance(event, Opened)
    return server


@pytest.mark.parametrize("entry", CORPUS["bad_requests"]["frames"], ids=lambda entry: entry["name"])
def test_a_bad_request_of_the_corpus_fails_alone(entry: dict[str, Any]) -> None:
    event, after = opened(max_keys=10_000).receive(bytes.fromhex(entry["frame"]) + frame(encode(Ping(1))))
    assert isinstance(event, BadRequest)
    assert (event.id, event.code.name) == (9, entry["code"])
    assert after == Ping(1)


@pytest.mark.parametrize("entry", CORPUS["broken"]["frames"], ids=lambda entry: entry["name"])
def test_a_broken_frame_of_the_corpus_ends_the_connection(entry: dict[str, Any]) -> None:
    with pytest.raises(BrokenConnection) as caught:
        opened(max_frame=65536).receive(bytes.fromhex(entry["frame"]))
    failure = decode(caught.value.close_notice[4:])
    assert isinstance(failure, Failure)
    assert (failure.id, FailureCode(failure.code).name) == (0, entry["code"])


def test_the_page_shows_exactly_the_golden_frames_of_the_corpus() -> None:
    shown = re.findall(r"^#### `([\w-]+)`\n\n(?:(.+)\n\n)?```text\n([0-9a-f\s]+)```", PAGE, re.MULTILINE)
    assert len(shown) == PAGE.count("\n#### ")
    found = {name: (meaning, hexadecimal(text).hex()) for name, meaning, text in shown}
    assert found == {name: (entry["meaning"], entry["frame"]) for name, entry in FRAMES.items()}


def test_the_annotated_frame_of_the_page_is_a_golden_one() -> None:
    drawing = re.search(r"```text\n(00 00 00 .*?)```", section("Messages"), re.DOTALL)
    assert drawing
    data = "".join(line[:33] for line in drawing[1].splitlines())
    assert hexadecimal(re.sub(r"[^0-9a-f ]", "", data)).hex() == FRAMES["get-from-proxy"]["frame"]


# --- keys and values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", CORPUS["keys"], ids=lambda entry: str(entry["key"]))
def test_the_key_vectors_are_what_the_code_computes(entry: dict[str, Any]) -> None:
    key = value_of(entry["key"])
    assert encode_key(key).hex() == entry["encoded"]
    assert decode_key(bytes.fromhex(entry["encoded"])) == key
    assert f"{key_hash(key):016x}" == entry["hash"]
    assert (key_group(key, 128), key_group(key, 1000)) == (entry["group_of_128"], entry["group_of_1000"])


def test_the_page_shows_exactly_the_key_vectors_of_the_corpus() -> None:
    found = [
        [hexadecimal(encoded.strip("`")).hex(), hashed.strip("`"), int(of_128), int(of_1000)]
        for _, encoded, hashed, of_128, of_1000 in rows(section("Keys"), "key")
    ]
    assert found == [
        [entry["encoded"], entry["hash"], entry["group_of_128"], entry["group_of_1000"]] for entry in CORPUS["keys"]
    ]


@pytest.mark.parametrize("entry", CORPUS["values"], ids=lambda entry: entry["name"])
def test_the_value_vectors_are_read_and_written_by_the_serializer(entry: dict[str, Any]) -> None:
    data = bytes.fromhex(entry["hex"])
    if entry["name"] == "map-state":
        # Its keys of several columns are plain arrays, which no dict can have: views.py reads those.
        assert data == b"\x82\xa3EWR\x03\x92\xa3JFK\x01\x04"
    else:
        assert MessagePackSerializer().dumps(MessagePackSerializer().loads(data)) == data


def test_the_page_shows_exactly_the_value_vectors_of_the_corpus() -> None:
    found = [
        [hexadecimal(data.strip("`")).hex(), meaning]
        for _, _, data, meaning in rows(section("Values"), "kind | serializer")
    ]
    assert found == [[entry["hex"], entry["meaning"]] for entry in CORPUS["values"]]


# --- tables ------------------------------------------------------------------------------------------------------


def test_the_failure_table_is_the_one_of_the_code() -> None:
    found = [[int(code), name, retry] for code, name, _, retry, _ in rows(section("Failures"), "code")]
    assert found == [[code.value, code.name, RETRY_WORDS[code.retry]] for code in FailureCode]


def test_the_type_table_is_the_one_of_the_code() -> None:
    found = {int(cells[0]): cells[1] for cells in rows(section("Messages"), "type")}
    assert found == {form.number: form.message.__name__ for form in messages.FORMS}


@pytest.mark.parametrize("form", messages.FORMS, ids=lambda form: form.message.__name__)
def test_the_fields_of_each_message_are_in_its_table_in_order(form: messages.Form) -> None:
    name, number = form.message.__name__, form.number
    start = re.search(rf"^.*\*\*{name}\*\*, type {number}\b", PAGE, re.MULTILINE)
    assert start, f"the page does not define {name}"
    fields = [field for field in form.message._fields if field not in ("id", "attributes")]
    if fields:
        shown = [cells[0] for cells in rows(PAGE[start.start() :], "field") if cells[0]]
        assert shown == fields


def test_the_limits_are_those_of_the_code() -> None:
    found = {name: int(value) for name, value, _ in rows(section("Limits"), "limit")}
    assert found == {
        "payload before the Welcome": limits.HANDSHAKE_MAX_FRAME,
        "`max_frame` at least": limits.MIN_MAX_FRAME,
        "`max_frame` by default": limits.DEFAULT_MAX_FRAME,
        "`max_frame` at most": limits.MAX_FRAME_LIMIT,
        "`max_keys` by default": limits.DEFAULT_MAX_KEYS,
        "`max_keys` at most": limits.MAX_KEYS_LIMIT,
        "characters of a name": limits.MAX_NAME,
        "bytes of a token": limits.MAX_TOKEN,
        "versions in a Hello": limits.MAX_VERSIONS,
        "features in a Hello or Welcome": limits.MAX_FEATURES,
        "entries of a map": limits.MAX_MAP_ENTRIES,
        "columns of a key": MAX_KEY_COLUMNS,
        "entries of a Description": limits.MAX_ENTRIES,
        "key groups of a state": MAX_PARALLELISM_LIMIT,
        "bytes of a state id": limits.STATE_ID_BYTES,
        "runs in a Changes": limits.MAX_RUNS,
        "bytes of a Poll's position": limits.MAX_POSITION,
        "bytes of a view": limits.MAX_VIEW,
        "bytes of a version": limits.MAX_VERSION_BYTES,
    }


def options_of(title: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for option, value, _ in rows(section(title), "option"):
        name = option.strip("`") or name
        found[name] = (*found.get(name, ()), value.strip("`"))
    return found


def test_the_options_of_a_get_are_those_of_the_code() -> None:
    assert options_of("Get and Values") == OPTIONS | dict.fromkeys(INTEGER_OPTIONS, ("integer from 0",))


def test_the_options_of_a_scan_are_those_of_the_code() -> None:
    found = options_of("Get and Values") | options_of("Scan and Page")
    assert found == SCAN_OPTIONS | dict.fromkeys(SCAN_INTEGER_OPTIONS, ("integer from 0",))


# --- rules -------------------------------------------------------------------------------------------------------


def test_every_rule_has_an_id_of_its_own() -> None:
    ids = re.findall(r"^- \*\*(P-[A-Z]+-\d+)\*\* ", PAGE, re.MULTILINE)
    assert len(ids) == len(set(ids))
    cited = set(re.findall(r"P-[A-Z]+-\d+", PAGE))
    assert cited == set(ids)
    # A rule is one item of a list, which may continue in indented lines.
    lines = PAGE.replace("\n  ", " ").splitlines()
    unnamed = [line for line in lines if "MUST" in line and not re.match(r"- \*\*P-|MUST, MUST NOT", line)]
    assert unnamed == []


def test_the_rules_of_a_family_are_numbered_without_gaps() -> None:
    numbers: dict[str, list[int]] = {}
    for family, number in re.findall(r"^- \*\*P-([A-Z]+)-(\d+)\*\* ", PAGE, re.MULTILINE):
        numbers.setdefault(family, []).append(int(number))
    for family, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), family


def test_links_within_the_page_lead_to_headings() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
