"""The rules of the protocol that no law about clients can see broken, and why.

Rules of this module: data. The suite's own tests hold it to the reference: a rule is cited by a law about clients or
about servers, or it is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UNOBSERVABLE"]

UNOBSERVABLE: Mapping[str, str] = {
    "P-CANCEL-4": "says SHOULD, of proxies: owners that are not asked to cancel answer later",
    "P-CLOSE-7": "says MAY, of servers: a client sees a connection that ends, as it may at any time",
    "P-PART-5": "says SHOULD, of servers: how much of a value they hold in memory",
    "P-POLL-9": "says MAY: a client need not poll again",
    "P-RETRY-4": "says SHOULD: a client that asks for all keys again is slower, not wrong",
    "P-RETRY-7": "says SHOULD: a client that sends over a connection that has ended fails as P-RETRY-5 lets it",
    "P-HELLO-9": "says SHOULD, of servers that give clients different rights: the suite's client has one token",
    "P-TLS-3": "says SHOULD, of servers that take TLS: the suite is given servers without it",
    "P-TLS-5": "says SHOULD, of servers that take TLS: the suite is given servers without it",
    "P-TLS-6": "says what an end means; frames that are cut are P-FRAME-1's",
    "P-VERSION-4": "binds those who write the next version of the reference",
}
