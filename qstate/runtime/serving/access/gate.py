"""The gate of a query port: it knows the rules of now, and who is on a connection.

Rules of this module: it identifies clients and notices a changed access file. `rights` decides what they may do.

New rules hold for open connections, too: each connection keeps what its client has shown, and is identified again. A
new file that is wrong changes nothing, so a slip of the pen neither locks all clients out nor lets all of them in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from qstate.errors import ConfigError, FailureCode, Forbidden
from qstate.host.home import in_home
from qstate.host.line_limit import limited
from qstate.runtime.serving.access.access_file import AccessFile, Stamp
from qstate.runtime.serving.access.audit import Audit, Entry
from qstate.runtime.serving.access.rights import ANYONE, EVERYTHING, NOBODY, Principal, Rules, digest_of

__all__ = ["RELOAD_S", "Gate", "Visitor"]

log = limited(logging.getLogger(__name__))

#: How often the access file is looked at.
RELOAD_S = 1.0


class Gate:
    """The rules of one port. Any thread may use it; `reload` is for one at a time.

    `token` and `peer_token` have every right: the first one is the clients', the other that of the job's proxies.
    `audit` keeps the audit log. `sees_certificates`: whether clients show certificates to it. Raises `ConfigError`
    when the access file cannot be read or is wrong.
    """

    def __init__(
        self,
        access_file: str,
        *,
        token: bytes | None,
        peer_token: bytes | None,
        audit: bool = False,
        sees_certificates: bool = True,
    ) -> None:
        self._file = access_file
        self._sees_certificates = sees_certificates
        #: The proxies of the job.
        self.proxies = Principal("proxy", (EVERYTHING,))
        owners = ((token, Principal("token", (EVERYTHING,))), (peer_token, self.proxies))
        self._fixed = {digest_of(known): principal for known, principal in owners if known is not None}
        self.audit = Audit() if audit else None
        self._stamp: Stamp | None = None
        self.rules = self._read() if access_file else Rules(self._fixed, {})

    @property
    def reloads(self) -> bool:
        """Whether there is a file that may change."""
        return bool(self._file)

    def reload(self) -> None:
        """Take over an access file that has changed. One that is wrong is logged, and the rules stay."""
        try:
            found = in_home(self._file).stat()
            if (found.st_mtime_ns, found.st_size, found.st_ino) != self._stamp:
                self.rules = self._read()
                log.info("took over the access file %s", self._file)
        except ConfigError as exc:
            log.error("%s; the rules from before stay", exc)
        except OSError as exc:
            log.error("the access file %s cannot be read: %s; the rules from before stay", self._file, exc.strerror)

    def _read(self) -> Rules:
        found = AccessFile(self._file)
        self._stamp = found.stamp
        if found.certificates and not self._sees_certificates:
            log.warning(
                "the access file %s names certificates, which clients do not show to this port: set "
                "tls_client_ca_file (--tls-client-ca)",
                self._file,
            )
        return Rules({**found.tokens, **self._fixed}, found.certificates)


class Visitor:
    """The client on one connection. Any thread may call `check` and read `principal`."""

    __slots__ = ("_address", "_digest", "_gate", "_known", "_names", "_names_of")

    def __init__(self, gate: Gate, address: str, names_of: Callable[[], Iterable[str]]) -> None:
        """`names_of` gives the names in the client's certificate, once it has sent its Hello."""
        self._gate = gate
        self._address = address
        self._names_of = names_of
        self._digest: str | None = None
        self._names: tuple[str, ...] = ()
        #: The principal by these rules. One attribute, because several threads ask.
        self._known: tuple[Rules | None, Principal] = (None, NOBODY)

    def enters(self, token: bytes | None) -> bool:
        """Whether the client may connect, with the token of its Hello."""
        self._digest = None if token is None else digest_of(token)
        self._names = tuple(self._names_of())
        return self.principal is not NOBODY

    def check(self, request: type, job: str, state: str, keys: int = 0) -> None:
        """Raise `Forbidden` unless the client may send this type of request about the state. The one check of rights.

        It does not matter whether there is such a state: what is not there is not for all to know, either.
        """
        permitted = self.principal.permits(request, job, state)
        self._record(request.__name__, job, state, 0 if permitted else FailureCode.FORBIDDEN, keys)
        if not permitted:
            raise Forbidden(job=job, state=state)

    def check_again(self, request: type, job: str, state: str) -> None:
        """Raise `Forbidden` if the rules of now do not permit a request that they permitted when it came in."""
        if not self.principal.permits(request, job, state):
            self._record(request.__name__, job, state, FailureCode.FORBIDDEN)
            raise Forbidden(job=job, state=state)

    def check_job(self, request: type, job: str | None) -> None:
        """Raise `Forbidden` unless the client may see that there is such a job, or for None ask for those it sees."""
        principal = self.principal
        permitted = principal is not NOBODY if job is None else principal.sees(job)
        self._record(request.__name__, job, None, 0 if permitted else FailureCode.FORBIDDEN)
        if not permitted:
            raise Forbidden() if job is None else Forbidden(job=job)

    def refused(self, code: FailureCode) -> None:
        """The client was turned away before it could ask for anything."""
        if self._gate.audit is not None:
            name = self._names[0] if self._names else ""
            self._gate.audit.record(Entry(name, self._address, "Hello", None, None, code))

    def _record(self, request: str, job: str | None, state: str | None, refusal: int, keys: int = 0) -> None:
        audit = self._gate.audit
        # A proxy has recorded what its clients ask for.
        if audit is not None and self.principal is not self._gate.proxies:
            name = self.principal.name
            if name in (ANYONE, NOBODY.name) and self._names:
                name = self._names[0]  # a client that has shown a certificate, and is no principal
            audit.record(Entry(name, self._address, request, job, state, refusal), keys)

    @property
    def is_proxy(self) -> bool:
        """Whether the client has shown the job's secret, as its proxies do."""
        return self.principal is self._gate.proxies

    @property
    def principal(self) -> Principal:
        """Who the client is, by the rules of now; `NOBODY` when they do not know it any more."""
        rules, (known_by, principal) = self._gate.rules, self._known
        if rules is not known_by:
            principal = rules.identify(self._digest, self._names) or NOBODY
            self._known = rules, principal
        return principal
