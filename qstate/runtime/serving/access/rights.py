"""Principals and their rights on jobs and states.

Rules of this module: decisions only. It reads no file and knows no connection. A server decides about each request
once, where it comes in, with `Principal.permits`: proxies have every right at state servers, because they have decided
before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import translate
from functools import lru_cache
from hashlib import sha256

from qstate.protocol.messages import Describe, Get, GetPart, Locate, Poll, Scan

__all__ = ["ANYONE", "EVERYTHING", "NOBODY", "RIGHT_OF", "Grant", "Principal", "Right", "Rules", "digest_of"]

#: The name of the principal of all clients, where they need neither a token nor a certificate of the access file.
ANYONE = "anyone"
#: How many decisions a principal remembers. The names in them come from clients.
MOST_DECISIONS = 4096


class Right(Enum):
    """What a grant may allow on a state."""

    READ = "read"
    SCAN = "scan"
    SUBSCRIBE = "subscribe"
    #: Any other right includes it: who may read a state may see that it is there, and where.
    DESCRIBE = "describe"


#: The right that a request needs on the state that it names.
RIGHT_OF: Mapping[type, Right] = {
    Get: Right.READ,
    GetPart: Right.READ,
    Scan: Right.SCAN,
    Poll: Right.SUBSCRIBE,
    Locate: Right.DESCRIBE,
    Describe: Right.DESCRIBE,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """These rights on the states whose job and name fit a pattern each. In a pattern, `*` stands for any text."""

    rights: frozenset[Right]
    jobs: tuple[str, ...]
    states: tuple[str, ...]


class Principal:
    """Who sends requests, as the rules know it. Any thread may use it.

    `permits(request, job, state)` says whether it may send this type of request about the state of the job. It is the
    one check of rights.
    """

    __slots__ = ("_grants", "name", "permits")

    def __init__(self, name: str, grants: Iterable[Grant] = ()) -> None:
        self.name = name
        self._grants = [(grant.rights, _matcher(grant.jobs), _matcher(grant.states)) for grant in grants]
        self.permits = lru_cache(MOST_DECISIONS)(self._decide)

    def sees(self, job: str) -> bool:
        """Whether it may see that there is a job of this name: it has some right on some states of it."""
        return any(jobs(job) for _, jobs, _ in self._grants)

    def _decide(self, request: type, job: str, state: str) -> bool:
        right = RIGHT_OF[request]
        return any(
            (right in rights or right is Right.DESCRIBE) and jobs(job) and states(state)
            for rights, jobs, states in self._grants
        )


#: Holders of the job's token, proxies of the job, and all clients of a port that asks for no token.
EVERYTHING = Grant(frozenset(Right), ("*",), ("*",))
#: A client whose token or certificate the rules do not know any more.
NOBODY = Principal("")


def digest_of(token: bytes) -> str:
    """What rules keep of a token: its SHA-256, in hexadecimal.

    A token is random, so no one can guess it from its digest. A slow hash is for passwords that people choose.
    """
    return sha256(token).hexdigest()


class Rules:
    """Principals by the digests of their tokens and by the names in their certificates. Immutable.

    Without any principal, every client has every right.
    """

    def __init__(self, tokens: Mapping[str, Principal], certificates: Mapping[str, Principal]) -> None:
        self._tokens = dict(tokens)
        self._certificates = dict(certificates)
        self._anyone = None if tokens or certificates else Principal(ANYONE, (EVERYTHING,))

    def identify(self, digest: str | None, names: Iterable[str]) -> Principal | None:
        """The principal of a client; None when the rules do not know it.

        A client that shows a token is known by the token alone, so a wrong one counts although its certificate is
        known. The look-up by digest takes no longer for a token that resembles another one.
        """
        if digest is not None:
            return self._tokens.get(digest, self._anyone)
        by_name = (self._certificates[name] for name in names if name in self._certificates)
        return next(by_name, self._anyone)


def _matcher(patterns: Iterable[str]) -> Callable[[str], object]:
    # For `fnmatch`, in which not only `*` has a meaning.
    literal = (pattern.replace("[", "[[]").replace("?", "[?]") for pattern in patterns)
    return re.compile("|".join(map(translate, literal))).fullmatch
