"""Clients that say their token to servers that have not proved themselves."""

from __future__ import annotations

import ssl
from typing import Any

from qstate import tls
from qstate.runtime.routing.pipelined_connection import ConnectionSettings
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from tests.defects.clients.seeds import defect


def _with_contexts(change: Any) -> None:
    make = tls._context

    def changed(protocol: int) -> ssl.SSLContext:
        context = make(protocol)
        change(context)
        return context

    tls._context = changed


@defect("tls.a_server_that_does_not_prove_itself_gets_no_hello")
def does_not_check_the_name() -> None:
    def change(context: ssl.SSLContext) -> None:
        context.check_hostname = False

    _with_contexts(change)


@defect("tls.a_server_that_does_not_prove_itself_gets_no_hello", PythonAsyncDriver)
def takes_any_certificate() -> None:
    def change(context: ssl.SSLContext) -> None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE

    _with_contexts(change)


@defect("tls.a_server_that_proves_itself_is_asked_over_tls")
def offers_no_name_of_the_protocol() -> None:
    def offer(context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["http/1.1"])

    _with_contexts(offer)


@defect("tls.a_server_of_another_protocol_gets_no_hello")
def does_not_look_at_the_name_of_the_protocol() -> None:
    shake = tls.TlsStream._shake_hands

    def shakes(self: Any) -> bool:
        tls.ALPN = self._object.selected_alpn_protocol()  # type: ignore[misc]
        return shake(self)

    tls.TlsStream._shake_hands = shakes  # type: ignore[method-assign]


@defect("tls.an_owner_proves_itself_as_the_proxy_does")
def trusts_owners_blindly() -> None:
    stream = tls.ClientTls.stream
    proxies: list[tls.ClientTls] = []

    def of(self: tls.ClientTls, host: str) -> tls.TlsStream:
        found = stream(self, host)
        if self in proxies:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols([tls.ALPN])
            return tls.TlsStream(context, server_name=host)
        proxies.append(self)
        return found

    tls.ClientTls.stream = of  # type: ignore[method-assign]


@defect("tls.a_token_without_tls_does_not_leave_the_machine")
def sends_its_token_anywhere() -> None:
    ConnectionSettings.exposes_token = lambda self, host: False  # type: ignore[method-assign]
