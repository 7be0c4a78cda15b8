"""The rules for servers whose breach cannot be seen, or cannot be provoked, from outside.

Rules of this module: a table for reports and for the suite's own tests. It lists each rule with the part of it that no
law checks; most of these rules have laws for their other parts.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UNOBSERVABLE"]

UNOBSERVABLE: Mapping[str, str] = {
    "P-HELLO-6": "that tokens are compared in constant time: over a network, the difference drowns in noise",
    "P-DEADLINE-3": "that a proxy passes on what is left of a deadline: only the owner behind it sees what it is given",
    "P-PING-1": "that a Ping touches no state: a server that reads some state in vain answers the same",
    "P-REQ-4": "codes of failures that the outside cannot bring about: RESTORING, CONCURRENT_MODIFICATION, INTERNAL",
    "P-REQ-6": "that a proxy takes no answer of an earlier epoch from an owner: the fixture's owners give none",
    "P-GET-12": "that a view is refused that is behind for a while: the fixture's have every commit, or may lack any",
    "P-POLL-11": "that the age is right: the fixture's server knows none, so it says so",
    "P-CLOSE-2": "what a server says when it shuts down: the suite does not stop the servers that it is given",
    "P-VERSION-4": "binds those who write the next version of the page, not a server",
}
