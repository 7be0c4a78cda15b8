"""TLS without I/O: certificate files in, one end of a connection out, which turns plain bytes into TLS's and back.

Rules of this module: it reads the files that its settings name, and opens no socket. It knows nothing of messages. It
decides what counts as proof: TLS 1.2 or newer, a certificate of a known authority that has the server's name, and the
protocol's own ALPN name, so that no server of another protocol with the same certificate can stand in.

Both ends use the same `TlsStream`, because a socket of the `ssl` module allows no reads and writes by several threads,
and keeps bytes that a poller cannot see.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
import time
from dataclasses import dataclass, field, replace
from typing import Any

from qstate.errors import ConfigError, TlsFailed
from qstate.host.home import in_home
from qstate.host.line_limit import limited
from qstate.host.private_files import open_trusted

__all__ = ["ALPN", "HANDSHAKE_MAX_BYTES", "ClientTls", "ServerTls", "TlsStream", "is_loopback"]

log = limited(logging.getLogger(__name__))

#: The name of the protocol in TLS's negotiation of protocols. The number is that of the protocol's first version.
ALPN = "qstate/1"
HTTP_ALPN = "http/1.1"
#: The most bytes of a peer before the handshake is complete, as many as before the Welcome.
HANDSHAKE_MAX_BYTES = 65536
_READ_BYTES = 64 * 1024
#: The first bytes of TLS's records of handshakes and of alerts.
_HANDSHAKE, _ALERT = 0x16, 0x15


@dataclass(frozen=True, slots=True)
class _Renewable:
    """Settings whose files may be replaced while connections use them."""

    _context: ssl.SSLContext = field(init=False, repr=False, compare=False)
    _stamps: list[tuple[int, int, int] | None] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        self.reload()

    def reload(self) -> bool:
        """Use changed files for new connections; returns whether there are any. One thread at a time.

        Raises `ConfigError` for files that cannot be used, each time; new connections use those from before.
        """
        stamps = list(map(_stamp, self._files()))
        if stamps == self._stamps:
            return False
        object.__setattr__(self, "_context", self._build())
        object.__setattr__(self, "_stamps", stamps)  # not before: rights of a file may be mended without a new stamp
        return True

    def renew(self) -> None:
        """As `reload`, and writes the result into the log instead of raising an error."""
        try:
            if self.reload():
                log.info("took over changed certificates of %s", ", ".join(filter(None, self._files())))
        except ConfigError as exc:
            log.error("%s; new connections use the certificates from before", exc)

    def _files(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _build(self) -> ssl.SSLContext:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ServerTls(_Renewable):
    """The TLS settings of a query port. Raises `ConfigError` for files that cannot be used.

    - `certificate_file`: PEM, the server's certificate and then those that lead to its authority. Its names must be
      those by which clients reach the server.
    - `key_file`: PEM, the private key, not encrypted; empty: it is in `certificate_file`.
    - `client_ca_file`: PEM, the authorities of clients' certificates; empty: clients need no certificate.
    - `require_client_certificate`: whether a client without a certificate is refused, when there is a `client_ca_file`.
    - `alpn`: the name of the protocol that it serves.
    """

    certificate_file: str
    key_file: str = ""
    client_ca_file: str = ""
    require_client_certificate: bool = True
    alpn: str = field(default=ALPN, kw_only=True)

    def _files(self) -> tuple[str, ...]:
        return self.certificate_file, self.key_file, self.client_ca_file

    def _build(self) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, self.alpn)
        # Tickets would arrive at idle clients, which take such bytes for the end of the connection.
        context.num_tickets = 0
        if not self.certificate_file:
            raise ConfigError("TLS on the query port needs a certificate: set its file, too")
        _load_certificate(context, self.certificate_file, self.key_file)
        if self.client_ca_file:
            _load_authorities(context, self.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED if self.require_client_certificate else ssl.CERT_OPTIONAL
        return context

    def for_http(self) -> ServerTls:
        """The same files for a server of HTTP, another protocol than that of the query port."""
        return replace(self, alpn=HTTP_ALPN)

    def lasting_context(self) -> ssl.SSLContext:
        """A context for a server that keeps the one it gets: new connections use the files of the last `reload`."""
        context = self._build()
        # OpenSSL calls it for clients that name no server, too, and takes certificate and ALPN from the new context.
        context.sni_callback = lambda connection, _name, _context: setattr(connection, "context", self._context)
        return context

    def stream(self, plain_refusal: bytes) -> TlsStream:
        """The server's end of a new connection. A client that speaks no TLS gets the refusal as it is."""
        return TlsStream(self._context, plain_refusal=plain_refusal)


@dataclass(frozen=True, slots=True)
class ClientTls(_Renewable):
    """The TLS settings of a client. Raises `ConfigError` for files, or a `server_name`, that cannot be used.

    The client verifies each server: the proxy, fallbacks, and the owners of keys, whose addresses come from the proxy.
    It reads the files when the settings are made; for renewed ones make a new client.

    - `ca_file`: PEM, the authorities whose certificates count; empty: those of the system.
    - `certificate_file`, `key_file`: PEM, the client's own certificate and key, for servers that require one. The key
      may be in `certificate_file`.
    - `server_name`: the name that every server's certificate must have; empty: the host name or IP address that the
      client connects to. Set it when owners are reached by IP addresses that their certificates lack.
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""

    def __post_init__(self) -> None:
        _Renewable.__post_init__(self)
        self.stream("localhost")  # refuses a `server_name` that no certificate has

    def _files(self) -> tuple[str, ...]:
        return self.ca_file, self.certificate_file, self.key_file

    def _build(self) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, ALPN)  # it verifies certificates and names
        if self.ca_file:
            _load_authorities(context, self.ca_file)
        else:
            context.load_default_certs()
        if self.certificate_file:
            _load_certificate(context, self.certificate_file, self.key_file)
        elif self.key_file:
            raise ConfigError("a client's key needs its certificate: give certificate_file, too")
        return context

    def stream(self, host: str) -> TlsStream:
        """The client's end of a new connection to a host. Raises `ConfigError` for a name that no certificate has."""
        try:
            return TlsStream(self._context, server_name=self.server_name or host.partition("%")[0])
        except (ValueError, TypeError, ssl.SSLError) as exc:
            raise ConfigError(f"no certificate has the name {self.server_name or host!r}: {exc}") from exc


class TlsStream:
    """One end of a TLS connection: bytes in, bytes out. Not thread-safe: lock around it.

    After every call the caller sends `outgoing()`, also after `TlsFailed`: then it has the reason for the peer.
    """

    __slots__ = ("_budget", "_incoming", "_object", "_outgoing", "_plain_refusal", "_server_side", "is_open", "names")

    def __init__(
        self, context: ssl.SSLContext, *, server_name: str | None = None, plain_refusal: bytes | None = None
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server_side = plain_refusal is not None
        self._plain_refusal = plain_refusal
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._server_side, server_hostname=server_name
        )
        self._budget = HANDSHAKE_MAX_BYTES
        #: Whether plain bytes can be sent: from the end of the handshake to a failure.
        self.is_open = False
        #: The names in a client's certificate, once that is so: the common name, then the alternative names.
        self.names: tuple[str, ...] = ()

    def start(self) -> bytes:
        """The client's first bytes."""
        self._shake_hands()
        return self.outgoing()

    def receive(self, data: bytes) -> bytes:
        """The plain bytes that the peer's bytes complete, perhaps none. Raises `TlsFailed`."""
        if not self.is_open:
            self._check_handshake(data)
        self._incoming.write(data)
        if not self.is_open and not self._shake_hands():
            return b""
        parts = []
        try:
            while part := self._object.read(_READ_BYTES):
                parts.append(part)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            # Zero return: the peer sends nothing more. The end of the stream follows and says the same.
            pass
        except ssl.SSLError as exc:
            self.is_open = False  # another thread may be about to send
            raise TlsFailed(reason=self._reason(exc)) from exc
        return b"".join(parts)

    def send(self, data: bytes) -> bytes:
        """The bytes to send for plain bytes. None before the handshake is complete and after `TlsFailed`: the plain
        bytes are dropped."""
        if not self.is_open:
            return b""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """The bytes to send beside those of `send`."""
        return self._outgoing.read()

    def _check_handshake(self, data: bytes) -> None:
        if self._budget == HANDSHAKE_MAX_BYTES and data and data[0] not in (_HANDSHAKE, _ALERT):
            if self._plain_refusal is not None:
                self._outgoing.write(self._plain_refusal)
                raise TlsFailed(reason="the client speaks no TLS")
            raise TlsFailed(
                reason="the server speaks no TLS on this port: connect without tls, or give the server a certificate"
            )
        self._budget -= len(data)
        if self._budget < 0:
            raise TlsFailed(reason=f"a handshake of more than {HANDSHAKE_MAX_BYTES} bytes")

    def _shake_hands(self) -> bool:
        """Continue the handshake; returns whether it is complete."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as exc:
            raise TlsFailed(reason=self._reason(exc)) from exc
        if self._object.selected_alpn_protocol() != ALPN:
            raise TlsFailed(reason=f"the peer does not speak {ALPN} over TLS (ALPN)")
        if self._server_side:
            self.names = self._names_of_client()
        self.is_open = True
        return True

    def _names_of_client(self) -> tuple[str, ...]:
        """The names in the client's certificate, if it has shown one. Raises `TlsFailed` for one that has expired."""
        try:
            certificate = dict(self._object.getpeercert() or {})
        except ValueError as exc:  # a name is no UTF-8
            log.warning("a client's certificate counts as one without names, because they cannot be read: %s", exc)
            return ()
        # OpenSSL does not look at it again when a client resumes a session of TLS 1.2.
        if certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time.time():
            raise TlsFailed(reason="the client's certificate is not accepted: certificate has expired")
        return _names_in(certificate)

    def _reason(self, error: ssl.SSLError) -> str:
        peer = "client" if self._server_side else "server"
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = "" if self._server_side else _HINTS.get(error.verify_code, "")
            return f"the {peer}'s certificate is not accepted: {error.verify_message}{hint}"
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if not self._server_side and "alert" in reason and "expired" in reason:
            return f"the server does not accept this client's certificate ({reason}): renew it"
        if not self._server_side and "alert" in reason and _CERTIFICATE_IS_MEANT.search(reason):
            return (
                f"the server does not accept this client's certificate, or requires one ({reason}): give "
                "certificate_file and key_file (--tls-certificate and --tls-key on the command line), for use by "
                "clients and signed by an authority that the server knows"
            )
        return f"TLS with the {peer} failed: {reason}"


def is_loopback(host: str) -> bool:
    """Whether connections to this host never leave the machine. A name may resolve to any address, except localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


#: What a client can do about a certificate, by OpenSSL's number of the fault.
_GIVE_CA = ". Give the authority that signed it as ca_file (--tls-ca on the command line)"
_GIVE_NAME = ". Connect by a name that the certificate has, or give that name as server_name (--tls-server-name)"
#: In OpenSSL's words for a peer's alert. With TLS 1.2 a handshake failure can also be about something else.
_CERTIFICATE_IS_MEANT = re.compile(r"certificate|\bca\b|handshake failure")
_HINTS = {10: ". Renew it", 18: _GIVE_CA, 19: _GIVE_CA, 20: _GIVE_CA, 21: _GIVE_CA, 62: _GIVE_NAME, 64: _GIVE_NAME}


def _names_in(certificate: dict[str, Any]) -> tuple[str, ...]:
    subject = certificate.get("subject", ())
    common = [value for part in subject for name, value in part if name == "commonName"]
    return (*common, *(value for _, value in certificate.get("subjectAltName", ())))


def _stamp(file: str) -> tuple[int, int, int] | None:
    """What shows that a file has changed; None without one."""
    try:
        found = in_home(file).stat() if file else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _context(protocol: int, alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([alpn])
    return context


def _load_certificate(context: ssl.SSLContext, certificate_file: str, key_file: str) -> None:
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        key = _trusted(key_file) if key_file else None
        context.load_cert_chain(_trusted(certificate_file), key, password=lambda: "")
    except (OSError, ValueError) as exc:
        files = f"{certificate_file} and key {key_file}" if key_file else certificate_file
        raise ConfigError(f"the certificate {files} cannot be used: {_why(exc)}") from exc


def _load_authorities(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(_trusted(file))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the certificate authorities in {file} cannot be used: {_why(exc)}") from exc


def _trusted(file: str) -> str:
    """The path for OpenSSL. Raises `OSError` for a file that other users can change, and for what is no file."""
    path = in_home(file)
    os.close(open_trusted(path))
    return str(path)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        fault = (error.reason or str(error)).lower().replace("_", " ")
        return f"{fault} (PEM is expected, the key not encrypted and of this certificate)"
    return getattr(error, "strerror", None) or str(error)
