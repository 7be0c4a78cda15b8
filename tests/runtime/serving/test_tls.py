"""Laws of TLS on the query port: real sockets, both clients, a proxy and its owners, and those who must not get in."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.client import AsyncQueryableStateClient, ClientTls, QueryableStateClient
from qstate.errors import ConfigError, FailureCode, QueryError, TlsFailed, Unauthenticated
from qstate.protocol.codec import decode
from qstate.protocol.messages import Failure, Values
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.tls import ALPN, HANDSHAKE_MAX_BYTES, ServerTls, TlsStream
from tests.certificates import Authority
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import PATIENCE_S, RawClient, value, wait_until
from tests.runtime.serving.readers import DictReader, GatedReader, instance

ENTRIES = {f"key {number}": float(number) for number in range(100)}
STATE = "lastTemperature"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "another authority")


@pytest.fixture(scope="module")
def server_file(authority: Authority) -> str:
    return authority.issue("127.0.0.1", "localhost")


@pytest.fixture
def served() -> StateInstance:
    return instance(DictReader({**ENTRIES, "long": "x" * 3_000_000}))


Serve = Callable[..., ClientProxy]


@pytest.fixture
def serve(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> Serve:
    """A proxy and the state server of all keys. `owner_tls` is the proxy's, `server` the state server's options."""

    def start(tls: ServerTls | None, *, owner_tls: ClientTls | None = None, server: Any = None, **more: Any) -> Any:
        found = start_server(tls=tls if server is None else server)
        proxy = start_proxy(tls=tls, owner_tls=owner_tls, **more)
        located = table(served, owner(served, found.address, registry.register(served)))
        proxy.set_location_oracle("job", TableOracle(**{STATE: located}))
        return proxy

    return start


def ask_synchronously(address: tuple[str, int], key: str = "key 7", **options: Any) -> Any:
    with QueryableStateClient(*address, timeout_s=PATIENCE_S, **options) as client:
        return client.get("job", STATE, key).value()


def ask_asynchronously(address: tuple[str, int], key: str = "key 7", **options: Any) -> Any:
    async def main() -> Any:
        async with await AsyncQueryableStateClient.connect(*address, timeout_s=PATIENCE_S, **options) as client:
            return (await client.get("job", STATE, key)).value()

    return asyncio.run(main())


@pytest.fixture(params=[ask_synchronously, ask_asynchronously], ids=["sync", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("direct", [None, False, True])
def test_both_clients_read_over_tls_through_the_proxy_and_from_the_owners(
    ask: Callable[..., Any], serve: Serve, authority: Authority, server_file: str, direct: bool | None
) -> None:
    tls = ClientTls(ca_file=authority.file)
    proxy = serve(ServerTls(server_file), owner_tls=tls)
    assert ask(proxy.address, tls=tls, direct=direct) == 7.0
    assert ask(proxy.address, "long", tls=tls, direct=direct) == "x" * 3_000_000


def test_the_name_that_owners_must_have_can_be_given(serve: Serve, authority: Authority) -> None:
    named = authority.issue("servers.flights.example")
    tls = ClientTls(ca_file=authority.file, server_name="servers.flights.example")
    proxy = serve(ServerTls(named), owner_tls=tls)
    for direct in (False, True):
        assert ask_synchronously(proxy.address, tls=tls, direct=direct) == 7.0


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("gives_up", ["cancels", "closes", "has a deadline"])
def test_a_request_that_is_given_up_ends_no_request_of_others(
    registry: StateRegistry,
    start_server: ServerFactory,
    start_proxy: ProxyFactory,
    authority: Authority,
    server_file: str,
    direct: bool,
    gives_up: str,
) -> None:
    reader = GatedReader({**ENTRIES, "slow": 1.0}, gated=["slow"])
    found, tls, statistics = instance(reader), ClientTls(ca_file=authority.file), InMemoryStatistics()
    server = start_server(statistics, tls=ServerTls(server_file))
    proxy = start_proxy(tls=ServerTls(server_file), owner_tls=tls)
    located = table(found, owner(found, server.address, registry.register(found)))
    proxy.set_location_oracle("job", TableOracle(**{STATE: located}))
    with (
        QueryableStateClient(*proxy.address, tls=tls, direct=direct, timeout_s=PATIENCE_S) as client,
        QueryableStateClient(*proxy.address, tls=tls, direct=direct, timeout_s=PATIENCE_S) as other,
    ):
        assert client.get("job", STATE, "key 7").value() == other.get("job", STATE, "key 7").value() == 7.0
        patience_s = 1.0 if gives_up == "has a deadline" else PATIENCE_S
        waiting = client.submit("job", STATE, "slow", timeout_s=patience_s)
        assert reader.entered.acquire(timeout=PATIENCE_S)
        of_client, of_other = (one.submit("job", STATE, "key 8") for one in (client, other))
        wait_until(lambda: server._endpoint.in_flight == 3, "the other requests at the server")
        if gives_up == "cancels":
            assert waiting.cancel()
        elif gives_up == "closes":
            client.close()
        else:
            with pytest.raises(QueryError):
                waiting.result()
        reader.gate.set()
        assert of_other.result().value() == 8.0
        assert gives_up == "closes" or of_client.result().value() == 8.0
        assert FailureCode.TLS_FAILED not in statistics.snapshot().failures


@pytest.mark.parametrize(
    ("fault", "says"),
    [("stranger", "ca_file"), ("expired", "expired"), ("other name", "server_name")],
)
def test_a_server_that_does_not_prove_itself_is_refused(
    ask: Callable[..., Any], serve: Serve, authority: Authority, stranger: Authority, fault: str, says: str
) -> None:
    file = {
        "stranger": lambda: stranger.issue("127.0.0.1"),
        "expired": lambda: authority.issue("127.0.0.1", expired=True),
        "other name": lambda: authority.issue("elsewhere.example"),
    }[fault]()
    proxy = serve(ServerTls(file))
    began = time.monotonic()
    with pytest.raises(TlsFailed, match=says):
        ask(proxy.address, tls=ClientTls(ca_file=authority.file), token="secret")
    assert time.monotonic() - began < PATIENCE_S / 2


def test_a_middleman_learns_neither_token_nor_keys(
    ask: Callable[..., Any], authority: Authority, stranger: Authority
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(stranger.issue("127.0.0.1"))
    context.set_alpn_protocols([ALPN])
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)

        def middleman() -> None:
            sock, _ = listener.accept()
            with sock, pytest.raises((ssl.SSLError, OSError)):
                heard.append(context.wrap_socket(sock, server_side=True).recv(65536))

        with running(middleman), pytest.raises(TlsFailed):
            ask(listener.getsockname(), tls=ClientTls(ca_file=authority.file), token="secret")
    assert heard == []


def test_a_plain_client_is_told_to_use_tls(ask: Callable[..., Any], serve: Serve, server_file: str) -> None:
    proxy = serve(ServerTls(server_file))
    with pytest.raises(TlsFailed, match=r"TLS connections only.*ClientTls"):
        ask(proxy.address)
    with socket.create_connection(proxy.address) as sock:
        sock.sendall(b"\0\0\0\1")
        answer = decode(read_to_end(sock)[4:])
    assert answer == Failure(0, FailureCode.TLS_FAILED, {"expected": "TLS"})


def test_a_tls_client_is_told_that_the_port_has_none(
    ask: Callable[..., Any], serve: Serve, authority: Authority
) -> None:
    proxy = serve(None)
    with pytest.raises(TlsFailed, match="no TLS on this port"):
        ask(proxy.address, tls=ClientTls(ca_file=authority.file))


def test_client_certificates_are_required_and_checked(
    ask: Callable[..., Any], serve: Serve, authority: Authority, stranger: Authority, server_file: str
) -> None:
    own = ClientTls(ca_file=authority.file, certificate_file=authority.issue("reader", common_name="reader"))
    proxy = serve(ServerTls(server_file, client_ca_file=authority.file), owner_tls=own)
    assert ask(proxy.address, tls=own) == 7.0
    strangers = ClientTls(ca_file=authority.file, certificate_file=stranger.issue("reader"))
    expired = ClientTls(ca_file=authority.file, certificate_file=authority.issue("reader", expired=True))
    for refused in (ClientTls(ca_file=authority.file), strangers, expired):
        with pytest.raises(TlsFailed, match="does not accept this client's certificate"):
            ask(proxy.address, tls=refused)


def test_a_certificate_whose_names_are_no_text_has_no_names(
    ask: Callable[..., Any], serve: Serve, authority: Authority, server_file: str, tmp_path: Path
) -> None:
    unreadable = authority.issue("reader", raw_name=b"\xff\xfe")
    own = ClientTls(ca_file=authority.file, certificate_file=unreadable)
    with pytest.raises(TlsFailed):
        ask(serve(ServerTls(unreadable)).address, tls=own)
    tls = ServerTls(server_file, client_ca_file=authority.file)
    assert ask(serve(tls, owner_tls=own).address, tls=own) == 7.0
    rules = tmp_path / "access.toml"
    rules.write_text(
        '[principals.reader]\ncertificates = ["reader"]\n[[principals.reader.grants]]\n'
        'rights = ["read"]\njobs = ["*"]\nstates = ["*"]\n'
    )
    with pytest.raises(Unauthenticated):
        ask(serve(tls, access_file=str(rules)).address, tls=own)


def test_an_expired_certificate_is_refused_also_when_a_session_is_resumed(
    authority: Authority, server_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerTls(server_file, client_ca_file=authority.file)
    context = ssl.create_default_context(cafile=authority.file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # TLS 1.3 has tickets only, and the server makes none
    context.set_alpn_protocols([ALPN])
    context.load_cert_chain(authority.issue("reader"))
    ends = []  # a session is good as long as a connection that has it

    def connected(session: ssl.SSLSession | None) -> ssl.SSLObject:
        stream, incoming, outgoing = server.stream(b""), ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1", session=session)
        ends.extend([stream, client])
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                stream.receive(outgoing.read())
                incoming.write(stream.outgoing())
        if rest := outgoing.read():
            stream.receive(rest)
        return client

    first = connected(None)
    assert connected(first.session).session_reused
    now = time.time()
    monkeypatch.setattr("qstate.tls.time.time", lambda: now + 2 * 86400)
    with pytest.raises(TlsFailed, match="the client's certificate is not accepted: certificate has expired"):
        connected(first.session)


def test_client_certificates_may_be_optional(serve: Serve, authority: Authority, server_file: str) -> None:
    tls = ServerTls(server_file, client_ca_file=authority.file, require_client_certificate=False)
    proxy = serve(tls, owner_tls=ClientTls(ca_file=authority.file))
    assert ask_synchronously(proxy.address, tls=ClientTls(ca_file=authority.file)) == 7.0


def test_a_proxy_does_not_trust_an_owner_that_does_not_prove_itself(
    serve: Serve, authority: Authority, stranger: Authority, server_file: str
) -> None:
    tls = ClientTls(ca_file=authority.file)
    proxy = serve(ServerTls(server_file), owner_tls=tls, server=ServerTls(stranger.issue("127.0.0.1")))
    with (
        QueryableStateClient(*proxy.address, tls=tls, direct=False, timeout_s=PATIENCE_S) as client,
        pytest.raises(QueryError) as refused,
    ):
        client.get("job", STATE, "key 7", wait_s=0.5)
    assert refused.value.code == FailureCode.UNKNOWN_KEY_GROUP_LOCATION


def test_openssl_as_a_stranger_is_refused(
    serve: Serve, authority: Authority, stranger: Authority, server_file: str
) -> None:
    proxy = serve(ServerTls(server_file, client_ca_file=authority.file))
    foreign = stranger.issue("reader")
    for more, says in (
        (["-alpn", ALPN], "alert"),
        (["-alpn", ALPN, "-cert", foreign, "-key", foreign], "alert unknown ca"),
        (["-alpn", ALPN, "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"], "alert protocol version"),
        (["-alpn", ALPN, "-tls1_2"], "alert"),
    ):
        assert says in openssl(proxy.address, authority, "-ign_eof", *more)


def test_openssl_with_a_certificate_is_served_and_needs_the_protocols_name(
    serve: Serve, authority: Authority, server_file: str
) -> None:
    proxy = serve(ServerTls(server_file, client_ca_file=authority.file))
    own = authority.issue("reader")
    good = openssl(proxy.address, authority, "-alpn", ALPN, "-cert", own, "-key", own)
    assert f"ALPN protocol: {ALPN}" in good and "TLSv1.3" in good and "Verify return code: 0 (ok)" in good
    with socket.create_connection(proxy.address) as sock:
        context = ssl.create_default_context(cafile=authority.file)
        context.load_cert_chain(own)
        with context.wrap_socket(sock, server_hostname="localhost") as secured:
            assert secured.selected_alpn_protocol() is None
            assert read_to_end(secured) == b""


def test_a_stalled_tls_handshake_is_closed_in_time(serve: Serve, server_file: str) -> None:
    proxy = serve(ServerTls(server_file), handshake_timeout_s=0.2)
    with socket.create_connection(proxy.address) as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        began = time.monotonic()
        assert read_to_end(sock) == b""
        assert time.monotonic() - began < PATIENCE_S / 2


def test_a_tls_handshake_of_many_bytes_is_closed(serve: Serve, server_file: str) -> None:
    proxy = serve(ServerTls(server_file))
    with socket.create_connection(proxy.address) as sock:
        sock.settimeout(PATIENCE_S)
        # A record of a handshake message that announces 16 MB, again and again.
        record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(16380)
        with suppress(OSError):  # the server closes before it has read all of them
            for _ in range(2 * HANDSHAKE_MAX_BYTES // len(record) + 1):
                sock.sendall(record)
        assert len(read_to_end(sock)) < 100


def test_strangers_that_stall_do_not_hold_the_reading_threads(
    serve: Serve, authority: Authority, server_file: str
) -> None:
    tls = ClientTls(ca_file=authority.file)
    proxy = serve(ServerTls(server_file), owner_tls=tls)
    stalled = [socket.create_connection(proxy.address) for _ in range(20)]
    for sock in stalled:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
    assert ask_synchronously(proxy.address, tls=tls) == 7.0
    for sock in stalled:
        sock.close()


def test_a_failed_tls_handshake_is_counted(start_server: ServerFactory, server_file: str) -> None:
    statistics = InMemoryStatistics()
    server = start_server(statistics, tls=ServerTls(server_file))
    with socket.create_connection(server.address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        read_to_end(sock)
    wait_until(lambda: statistics.snapshot().failures.get(FailureCode.TLS_FAILED) == 1, "counting the failed handshake")


def test_pipelined_requests_and_bytes_that_come_one_by_one_are_read(
    registry: StateRegistry, start_server: ServerFactory, authority: Authority, server_file: str, served: StateInstance
) -> None:
    server = start_server(tls=ServerTls(server_file))
    state_id = registry.register(served)
    client = RawClient(server.address, hello=False)
    context = ssl.create_default_context(cafile=authority.file)
    context.set_alpn_protocols([ALPN])
    client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sock = context.wrap_socket(client.sock, server_hostname="localhost")
    with client:
        for byte in client.connection.start():
            client.sock.sendall(bytes([byte]))
        client.read()
        numbers = [client.send_get(state_id, f"key {number}") for number in range(100)]
        for number, sent in enumerate(numbers):
            answer = client.answer_to(sent)
            assert isinstance(answer, Values) and answer.results == (value(float(number)),)


def test_threads_that_answer_at_once_keep_the_records_in_order(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, authority: Authority
) -> None:
    entries = {f"{size} {number}": f"{number}" * size for size in (1, 3_000, 200_000) for number in range(10)}
    served = instance(DictReader(entries))
    tls, known = ServerTls(authority.issue("127.0.0.1")), ClientTls(ca_file=authority.file)
    server = start_server(tls=tls, network_threads=2, query_threads=4)
    proxy = start_proxy(tls=tls, owner_tls=known, network_threads=2, query_threads=4)
    located = table(served, owner(served, server.address, registry.register(served)))
    proxy.set_location_oracle("job", TableOracle(**{STATE: located}))
    for direct in (False, True):
        with QueryableStateClient(*proxy.address, tls=known, direct=direct, timeout_s=PATIENCE_S) as client:
            wanted = [key for key in entries for _ in range(5)]
            Random(3).shuffle(wanted)
            asked = [client.submit("job", STATE, key) for key in wanted]
            assert [future.result().value() for future in asked] == [entries[key] for key in wanted]


@given(data=st.data())
def test_whatever_a_peer_sends_is_refused_and_raises_nothing_else(data: st.DataObject, pair: Pair) -> None:
    server, client = pair()
    sides = {"server": server, "client": client}
    hello = client.start()
    server.receive(hello)
    client.receive(server.outgoing())
    side = sides[data.draw(st.sampled_from(sorted(sides)))]
    if data.draw(st.booleans()):
        server.receive(client.outgoing())
    forged = data.draw(st.binary(min_size=1, max_size=200)) if data.draw(st.booleans()) else damaged(hello, data)
    try:
        while forged:
            piece = data.draw(st.integers(1, len(forged)))
            assert side.receive(forged[:piece]) == b""
            forged = forged[piece:]
    except TlsFailed as failed:
        assert "reason" in failed.details
        assert side.send(b"an answer of another thread") == b""


Pair = Callable[[], tuple[TlsStream, TlsStream]]


@pytest.fixture(scope="module")
def pair(authority: Authority, server_file: str) -> Pair:
    """Makes both ends of a connection."""
    server, client = ServerTls(server_file), ClientTls(ca_file=authority.file)
    return lambda: (server.stream(b""), client.stream("127.0.0.1"))


def damaged(sound: bytes, data: st.DataObject) -> bytes:
    place = data.draw(st.integers(0, len(sound) - 1))
    return sound[:place] + bytes([sound[place] ^ data.draw(st.integers(1, 255))]) + sound[place + 1 :]


def test_settings_that_cannot_work_are_refused(tmp_path: Path, authority: Authority, server_file: str) -> None:
    other = authority.issue("other")
    (tmp_path / "empty.pem").write_text("")
    writable = tmp_path / "writable.pem"
    writable.write_bytes(Path(authority.file).read_bytes())
    writable.chmod(0o666)
    for wrong, says in (
        (lambda: ServerTls(str(tmp_path / "missing.pem")), "No such file"),
        (lambda: ServerTls(str(tmp_path / "empty.pem")), "PEM"),
        (lambda: ServerTls(server_file, other), "values mismatch"),
        (lambda: ServerTls(""), "needs a certificate"),
        (lambda: ServerTls(server_file, client_ca_file=str(tmp_path / "empty.pem")), "authorities in"),
        (lambda: ClientTls(ca_file=str(tmp_path / "missing.pem")), "No such file"),
        (lambda: ClientTls(ca_file=str(tmp_path)), "no regular file"),
        (lambda: ClientTls(ca_file=str(writable)), "other users can change it"),
        (lambda: ClientTls(key_file=server_file), "certificate_file"),
        (lambda: ClientTls(server_name="servers..example"), "no certificate has the name 'servers..example'"),
        (lambda: ClientTls(server_name="servers\0"), "no certificate has the name"),
        (lambda: ClientTls(server_name="a." * 150 + "x"), "no certificate has the name"),
        (lambda: QueryableStateClient("localhost", 9069, tls=True), "ClientTls"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=says):
            wrong()


@pytest.mark.parametrize("host", ["10.1.2.3", "proxy.example", "127.0.0.1.example", "0.0.0.0", "fe80::1"])
def test_a_token_without_tls_goes_to_loopback_only(host: str) -> None:
    for refused in (
        lambda: QueryableStateClient(host, 9069, token="secret"),
        lambda: QueryableStateClient("localhost", 9069, token="secret", fallback=[(host, 9069)]),
        lambda: asyncio.run(AsyncQueryableStateClient.connect(host, 9069, token="secret")),
    ):
        with pytest.raises(ConfigError, match=rf"to {host} without TLS.*allow_token_without_tls=True"):
            refused()
    QueryableStateClient(host, 9069).close()
    QueryableStateClient(host, 9069, token="secret", tls=ClientTls()).close()
    QueryableStateClient(host, 9069, token="secret", allow_token_without_tls=True).close()
    for loopback in ("localhost", "127.0.0.1", "127.8.8.8", "::1"):
        QueryableStateClient(loopback, 9069, token="secret").close()


def test_owners_beyond_loopback_get_no_token_without_tls(
    registry: StateRegistry, start_proxy: ProxyFactory, served: StateInstance, ask: Callable[..., Any]
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        elsewhere = ("0.0.0.0", listener.getsockname()[1])
        proxy = start_proxy(token=b"secret")
        located = table(served, owner(served, elsewhere, registry.register(served)))
        proxy.set_location_oracle("job", TableOracle(**{STATE: located}))
        with pytest.raises(TlsFailed, match="token would be sent without TLS"):
            ask(proxy.address, token="secret", direct=True)
        with (
            QueryableStateClient(*proxy.address, token="secret", direct=False) as client,
            pytest.raises(QueryError) as refused,
        ):
            client.get("job", STATE, "key 7", wait_s=0.1)
        assert refused.value.code == FailureCode.UNKNOWN_KEY_GROUP_LOCATION
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_renewed_certificates_are_used_for_new_connections(
    serve: Serve, authority: Authority, stranger: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstate.runtime.serving.endpoint.RELOAD_S", 0.01)
    file = tmp_path / "server.pem"
    file.write_text(Path(authority.issue("127.0.0.1", expired=True)).read_text())
    tls = ClientTls(ca_file=authority.file)
    proxy = serve(ServerTls(str(file)), owner_tls=ClientTls(authority.file, str(file)))

    def is_served() -> bool:
        with suppress(TlsFailed):
            return bool(ask_synchronously(proxy.address, tls=tls, direct=False) == 7.0)
        return False

    assert not is_served()
    file.write_text(Path(authority.issue("127.0.0.1")).read_text())
    wait_until(is_served, "taking over the renewed certificate")
    file.write_text("no certificate")
    assert is_served()


def test_a_renewed_certificate_is_used_once_its_rights_are_mended(
    serve: Serve,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("qstate.runtime.serving.endpoint.RELOAD_S", 0.01)
    file = tmp_path / "server.pem"
    file.write_text(Path(authority.issue("127.0.0.1", expired=True)).read_text())
    proxy = serve(ServerTls(str(file)), owner_tls=ClientTls(authority.file))
    renewed = tmp_path / "renewed.pem"
    renewed.write_text(Path(authority.issue("127.0.0.1")).read_text())
    renewed.chmod(0o666)
    renewed.replace(file)
    wait_until(lambda: "other users can change it" in caplog.text, "refusing the renewed certificate")
    file.chmod(0o600)

    def is_taken_over() -> bool:
        with suppress(TlsFailed), QueryableStateClient(*proxy.address, tls=ClientTls(authority.file)) as client:
            return bool(client.jobs())
        return False

    wait_until(is_taken_over, "taking over the renewed certificate")


@pytest.mark.parametrize("host", ["state..example", "state\0example", ".example"])
def test_an_owner_whose_name_no_certificate_has_is_a_failure_of_tls(
    registry: StateRegistry,
    start_proxy: ProxyFactory,
    served: StateInstance,
    authority: Authority,
    host: str,
    server_file: str,
    ask: Callable[..., Any],
) -> None:
    proxy = start_proxy(tls=ServerTls(server_file), owner_tls=ClientTls(authority.file))
    located = table(served, owner(served, (host, 9069), registry.register(served)))
    proxy.set_location_oracle("job", TableOracle(**{STATE: located}))
    with pytest.raises(TlsFailed, match="no certificate has the name"):
        ask(proxy.address, tls=ClientTls(authority.file), direct=True)
    with (
        QueryableStateClient(*proxy.address, tls=ClientTls(authority.file), direct=False) as client,
        pytest.raises(QueryError, match="no certificate has the name") as refused,
    ):
        client.get("job", STATE, "key 7", wait_s=0.1)
    assert refused.value.code == FailureCode.UNKNOWN_KEY_GROUP_LOCATION


def openssl(address: tuple[str, int], authority: Authority, *more: str) -> str:
    """What `openssl s_client` writes when it connects and says nothing."""
    command = ["openssl", "s_client", "-connect", f"{address[0]}:{address[1]}", "-CAfile", authority.file, *more]
    found = subprocess.run(command, input=b"", capture_output=True, timeout=PATIENCE_S, check=False)
    return (found.stdout + found.stderr).decode()


@contextmanager
def running(work: Callable[[], None]) -> Iterator[None]:
    """Run `work` on a thread meanwhile, and wait for its end."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def read_to_end(sock: socket.socket) -> bytes:
    """What the peer sends until it closes or resets the connection."""
    sock.settimeout(PATIENCE_S)
    data = b""
    with suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            data += chunk
    return data
