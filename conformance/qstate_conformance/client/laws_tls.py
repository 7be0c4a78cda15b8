"""TLS: what a client asks of a server before it says anything, and where it never says its token."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from qstate_conformance.client import frames
from qstate_conformance.client.peer import Peer
from qstate_conformance.client.stage import client_of, connection, has_left, needs
from qstate_conformance.laws import law
from qstate_conformance.subjects import ClientSubject

#: Test certificates, which prove nothing: their keys are public.
CERTIFICATES = Path(__file__).parent / "certificates"
ALPN = "qstate/1"
TLS: Any = {"ca_file": str(CERTIFICATES / "authority.pem"), "server_name": None}
TOKEN = b"open sesame"


def _context(certificate: str = "server.pem", *alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / certificate)
    context.set_alpn_protocols(list(alpn or (ALPN,)))
    return context


def _asked_in_vain(subject: ClientSubject, peer: Peer, **options: Any) -> None:
    """Assert that a client that gets nothing out of the peer has said nothing to it, either."""
    with client_of(subject, peer, timeout_s=0.5, token=TOKEN, **options) as client:
        assert client.get("key", timeout_s=0.5).failed
        made = connection(peer)
        assert made.hello is None, "the client sent its Hello"
        assert has_left(peer, made)


@law("P-TLS-1", "P-TLS-2", "P-HELLO-8")
def test_a_server_that_proves_itself_is_asked_over_tls(subject: ClientSubject) -> None:
    """A client verifies the server's certificate, offers `qstate/1` over TLS 1.2 or newer, and sends its token then."""
    needs(subject, "tls")
    with Peer(tls=_context()) as peer, client_of(subject, peer, token=TOKEN, tls=TLS) as client:
        assert client.get("key").value == "key"
        made = connection(peer)
        assert made.tls is not None and made.hello is not None
        assert made.tls.selected_alpn_protocol() == ALPN, f"P-TLS-1: the client does not offer {ALPN}"
        assert made.tls.version() in ("TLSv1.2", "TLSv1.3")
        assert made.hello.elements[3] == TOKEN
        assert peer.faults == []


@law("P-TLS-2")
@pytest.mark.parametrize("certificate", ["stranger.pem", "other_name.pem"])
def test_a_server_that_does_not_prove_itself_gets_no_hello(subject: ClientSubject, certificate: str) -> None:
    """A certificate of an unknown authority, or for another name, ends the connection before the Hello."""
    needs(subject, "tls")
    with Peer(tls=_context(certificate)) as peer:
        _asked_in_vain(subject, peer, tls=TLS)


@law("P-TLS-2")
def test_the_name_that_the_user_gives_is_the_one_that_counts(subject: ClientSubject) -> None:
    """With a server name from its user, a client takes a certificate for that name, and no other."""
    needs(subject, "tls")
    named = {**TLS, "server_name": "elsewhere.example"}
    with Peer(tls=_context("other_name.pem")) as peer, client_of(subject, peer, tls=named) as client:
        assert client.get("key").value == "key"
    with Peer(tls=_context()) as peer:
        _asked_in_vain(subject, peer, tls=named)


@law("P-TLS-2")
def test_an_owner_proves_itself_as_the_proxy_does(subject: ClientSubject) -> None:
    """An owner whose address comes from a Location gets no Hello unless it proves itself."""
    needs(subject, "tls", "direct")
    with Peer(tls=_context("stranger.pem")) as owner, Peer(tls=_context()) as peer:
        explain = peer.explain
        peer.explain = peer.answer = lambda request: (  # type: ignore[method-assign]
            [frames.location(request.id, next(iter(peer.states.values())), [owner.owner()])]
            if request.type == frames.LOCATE
            else explain(request)
        )
        with client_of(subject, peer, timeout_s=0.5, token=TOKEN, direct=True, tls=TLS) as client:
            assert client.get("key", timeout_s=0.5).failed
        assert [made for made in owner.connections if made.hello] == []


@law("P-TLS-1")
def test_a_server_of_another_protocol_gets_no_hello(subject: ClientSubject) -> None:
    """A server that proves itself and does not select `qstate/1` may be one of another protocol: it gets no Hello."""
    needs(subject, "tls")
    with Peer(tls=_context("server.pem", "h2", "http/1.1")) as peer:
        _asked_in_vain(subject, peer, tls=TLS)


@law("P-TLS-2")
def test_a_client_with_tls_never_goes_on_without_it(subject: ClientSubject) -> None:
    """A server that speaks no TLS gets no Hello of a client that does, neither at first nor later."""
    needs(subject, "tls")
    with Peer() as peer, client_of(subject, peer, timeout_s=0.5, token=TOKEN, tls=TLS) as client:
        for _ in range(2):
            assert client.get("key", timeout_s=0.5).failed
        assert [made for made in peer.connections if made.hello] == []


@law("P-HELLO-8")
def test_a_token_without_tls_does_not_leave_the_machine(subject: ClientSubject) -> None:
    """A client that has a token and no TLS sends no Hello with it to an address beyond loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: it only finds the address of this machine
        except OSError:
            pytest.skip("this machine has no address beyond loopback")
        host = sock.getsockname()[0]
    with Peer(host=host) as peer, client_of(subject, peer, timeout_s=0.3, token=TOKEN) as client:
        assert client.get("key", timeout_s=0.3).failed
        assert not peer.wait_for(lambda: any(made.hello for made in peer.connections), 0.1), "the token was sent"
