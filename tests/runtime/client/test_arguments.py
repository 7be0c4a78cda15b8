"""The clients refuse invalid arguments before they send anything, with an error that names what was expected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import ConfigError, WrongKeyType
from tests.runtime.client.peer import Peer
from tests.runtime.client.real_job import Asked

#: An address without a listener; these tests send nothing to it.
NOWHERE = ("127.0.0.1", 9)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("localhost", "9069", r"port must be an integer .* got '9069': pass 9069, without quotes"),
        ("localhost", "http", "port must be an integer from 1 to 65535, got 'http'"),
        ("localhost", 0, "port must be"),
        ("localhost", 65536, "port must be"),
        ("localhost", True, "port must be"),
        ("localhost", 9069.0, "port must be"),
        ("localhost", None, "port must be"),
        ("http://localhost", 9069, "not a URL"),
        ("http://localhost:9069", 9069, "not a URL"),
        ("localhost:9069", 9069, "host='localhost', port=9069"),
        ("", 9069, "host must be"),
        (" ", 9069, "host must be"),
        (None, 9069, "host must be"),
        (9069, "localhost", "host must be"),
        ("a b", 9069, "host must be .* without spaces .* got 'a b'"),
        ("h\n", 9069, r"host must be .* got 'h\\n'"),
        (" localhost", 9069, "host must be .* got ' localhost'"),
        ("a\u3000b", 9069, "host must be"),
        ("a\x00b", 9069, "host must be"),
        ("\ud800", 9069, r"host must be .* got '\\ud800'"),
        ("user@host", 9069, "host must be .* got 'user@host'"),
        ("a,b", 9069, "host must be .* got 'a,b'"),
        ("[::1]", 9069, "IPv6 address without brackets, as in '::1', got"),
        ("[::1]:9069", 9069, "host='::1', port=9069"),
        ("a..b", 9069, "host must be"),
        ("a" * 64, 9069, "host must be"),
    ],
)
def test_an_invalid_address_is_refused(host: Any, port: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QueryableStateClient(host, port)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(AsyncQueryableStateClient.connect(host, port))
    with pytest.raises(ConfigError, match=message):
        QueryableStateClient(*NOWHERE, fallback=[(host, port)])


def test_addresses_of_every_form_are_accepted() -> None:
    for host in (
        "localhost",
        "10.0.0.1",
        "::1",
        "fe80::1%eth0.5",
        "a.very-long.name.example",
        "a_b.",
        "m\xfcller.example",
    ):
        QueryableStateClient(host, 9069).close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "timeout_s must be seconds above zero"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": "10"}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": None}, "timeout_s"),
        ({"token": 5}, "token must be text or bytes"),
        ({"token": "x" * 4097}, "4096 bytes"),
        ({"token": "\ud800"}, "token must be .* without lone surrogates$"),
        ({"direct": "yes"}, "direct must be True, False or None, got 'yes'"),
        ({"direct": 1}, "direct must be True, False or None, got 1"),
        ({"max_frame": 10}, "max_frame must be"),
        ({"max_frame": "16M"}, "max_frame must be"),
        ({"serializers": "zlib"}, "serializers"),
        ({"serializers": 5}, "takes a list"),
        ({"serializers": ["zlib"]}, "instances"),
        ({"fallback": "standby:9069"}, "list of"),
        ({"fallback": ("standby", 9069)}, "of each proxy"),
        ({"fallback": 9069}, "list of"),
    ],
)
def test_a_setting_of_a_client_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QueryableStateClient(*NOWHERE, **options)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(AsyncQueryableStateClient.connect(*NOWHERE, **options))


WRONG_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "an isolation that there is not": (
        ("job", "state", "k"),
        {"isolation": "comitted"},
        ConfigError,
        "'live', 'committed', got 'comitted'",
    ),
    "an isolation that is no text": (("job", "state", "k"), {"isolation": ["live"]}, ConfigError, "isolation"),
    "no key": (("job", "state", None), {}, WrongKeyType, "expected"),
    "a key that is a fraction": (("job", "state", 1.5), {}, WrongKeyType, "expected"),
    "a key that is a list": (("job", "state", ["a", 1]), {}, WrongKeyType, "expected"),
    "a namespace that is a fraction": (("job", "state", "k", 0.5), {}, WrongKeyType, "expected"),
    "a namespace that is a list": (("job", "state", "k", ["a"]), {}, WrongKeyType, "expected"),
    "no job": (("", "state", "k"), {}, ConfigError, "job must be a name of 1 to 255"),
    "a job that is no text": ((7, "state", "k"), {}, ConfigError, "job must be text.*int: 7"),
    "a job that is a list": ((["job"], "state", "k"), {}, ConfigError, "job must be text"),
    "no state": (("job", None, "k"), {}, ConfigError, "state must be text"),
    "a state of a long name": (("job", "s" * 256, "k"), {}, ConfigError, "got 256"),
    "a job with a lone surrogate": (("\ud800", "state", "k"), {}, ConfigError, r"job must be .*, got '\\ud800'"),
    "a state with a lone surrogate": (("job", "s\udfff", "k"), {}, ConfigError, r"state must be .*, got 's\\udfff'"),
    "a time that is text": (("job", "state", "k"), {"timeout_s": "1"}, ConfigError, "timeout_s"),
    "a time below zero": (("job", "state", "k"), {"timeout_s": -0.5}, ConfigError, "timeout_s"),
    "an epoch that is text": (("job", "state", "k"), {"min_epoch": "7"}, ConfigError, "min_epoch"),
    "an epoch that is a list": (("job", "state", "k"), {"min_epoch": [7]}, ConfigError, "min_epoch"),
    "a staleness that is text": (("job", "state", "k"), {"max_staleness_s": "5"}, ConfigError, "max_staleness_s"),
    "a staleness below zero": (("job", "state", "k"), {"max_staleness_s": -1}, ConfigError, "max_staleness_s"),
}


@pytest.fixture(params=["nothing is known yet", "the state is known"])
def known(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "the state is known")


def refuses(call: Callable[..., Any], name: str) -> None:
    arguments, options, error, message = WRONG_CALLS[name]
    with pytest.raises(error, match=message):
        call(*arguments, **options)


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_call_that_cannot_be_answered_is_refused_before_it_is_sent(name: str, known: bool) -> None:
    with Peer() as peer, QueryableStateClient(*peer.address) as client:
        if known:
            client.get("job", "state", "warm")
        peer.requests.clear()
        refuses(client.get, name)
        refuses(lambda *args, **options: client.submit(*args, **options).result(), name)
        refuses(lambda job, state, key, *rest, **options: client.get_many(job, state, [key], *rest, **options), name)
        assert peer.requests == []
        assert peer.connections == known


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_call_of_the_asyncio_client_that_cannot_be_answered_is_refused_before_it_is_sent(
    name: str, known: bool
) -> None:
    async def submitted(client: AsyncQueryableStateClient, *args: Any, **options: Any) -> Any:
        return await client.submit(*args, **options)

    with Peer() as peer, Asked(peer.address) as client:
        if known:
            client.get("job", "state", "warm")
        peer.requests.clear()
        refuses(client.get, name)
        refuses(lambda *args, **options: client.run(submitted(client.client, *args, **options)), name)
        refuses(lambda job, state, key, *rest, **options: client.get_many(job, state, [key], *rest, **options), name)
        assert peer.requests == []


@pytest.mark.parametrize("keys", ["JFK", b"JFK", 7, None])
def test_one_key_instead_of_several_is_refused(keys: Any) -> None:
    with QueryableStateClient(*NOWHERE) as client, pytest.raises(ConfigError, match="list of keys"):
        client.get_many("job", "state", keys)
    with Peer() as peer, Asked(peer.address) as other, pytest.raises(ConfigError, match="list of keys"):
        other.get_many("job", "state", keys)


@pytest.mark.parametrize("name", ["progress_s", "patience_s"])
@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan"), "5", None])
def test_a_subscription_names_the_time_that_it_refuses(name: str, seconds: Any) -> None:
    with QueryableStateClient(*NOWHERE) as client, pytest.raises(ConfigError, match=f"{name} must be seconds"):
        client.subscribe("job", "state", **{name: seconds})
    with Peer() as peer, Asked(peer.address) as other, pytest.raises(ConfigError, match=f"{name} must be seconds"):
        other.run(_subscribed(other.client, **{name: seconds}))


def test_a_poll_that_waits_longer_than_a_request_can_say_is_refused() -> None:
    with QueryableStateClient(*NOWHERE) as client, pytest.raises(ConfigError, match="progress_s must be at most"):
        client.subscribe("job", "state", progress_s=4_294_968.0)


WRONG_SELECTIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a limit beyond 64 bits": ({"limit": 10**30}, ConfigError, "limit must be a number of keys from 1 to 9223372036"),
    "a limit of 64 bits without a sign": ({"limit": 1 << 63}, ConfigError, "limit must be a number of keys"),
    "a prefix with a lone surrogate": ({"prefix": "a\ud800"}, WrongKeyType, "text that UTF-8 can encode"),
    "a column with a lone surrogate": ({"prefix": ("a\ud800",)}, WrongKeyType, "text that UTF-8 can encode"),
    "a column that is a key": ({"prefix": (("a", "b"),)}, WrongKeyType, "expected='string, binary, .*got='tuple'"),
    "too many columns": ({"prefix": ("a",) * 65}, WrongKeyType, "at most 64 columns"),
    "a prefix that is no column": ({"prefix": ["a"]}, ConfigError, "prefix must be text, bytes, or a tuple"),
}


@pytest.mark.parametrize("name", WRONG_SELECTIONS)
def test_keys_that_cannot_be_selected_are_refused_before_anything_is_sent(name: str) -> None:
    options, error, message = WRONG_SELECTIONS[name]
    with QueryableStateClient(*NOWHERE) as client, Peer() as peer, Asked(peer.address) as other:
        calls: list[Callable[..., Any]] = [client.scan, other.scan]
        calls.append(lambda job, state, **given: client.state(job, state).scan(**given))
        if "prefix" in options:
            calls += [client.count, client.subscribe, other.count, other.subscribe]
        peer.requests.clear()
        for call in calls:
            with pytest.raises(error, match=message):
                call("job", "state", **options)
        assert peer.requests == []


async def _subscribed(client: AsyncQueryableStateClient, **options: Any) -> None:
    client.subscribe("job", "state", **options)


@pytest.mark.parametrize("job", ["", None, 7, "x" * 256, "\ud800"])
def test_states_of_an_invalid_job_name_are_refused(job: Any) -> None:
    with QueryableStateClient(*NOWHERE) as client, pytest.raises(ConfigError, match="job must be"):
        client.states(job)
    with Peer() as peer, Asked(peer.address) as other, pytest.raises(ConfigError, match="job must be"):
        other.states(job)


@pytest.mark.parametrize("arguments", [NOWHERE, ()])
def test_an_asyncio_client_is_made_by_connect(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"await AsyncQueryableStateClient.connect\(host, port\)"):
        AsyncQueryableStateClient(*arguments)
    with pytest.raises(ConfigError, match=r"connect\(host, port\)"):
        AsyncQueryableStateClient(host="127.0.0.1", port=9069)
