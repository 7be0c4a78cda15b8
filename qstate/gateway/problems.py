"""Failures as HTTP answers: the status of each failure code, and problem details as of RFC 9457.

Rules of this module: errors in, JSON types out. What a caller need not know about the network behind the gateway is
left out, and is in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from msgspec import json
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from qstate.errors import (
    ClosedError,
    ConfigError,
    FailureCode,
    InternalFailure,
    MalformedRequest,
    QStateError,
    QueryError,
    Retry,
    SerializationError,
    ShuttingDown,
    UnsupportedQuery,
)
from qstate.host.line_limit import limited
from qstate.values.text_forms import printable

__all__ = ["MEDIA_TYPE", "STATUS", "Problem", "answer_to", "problem_of", "status_of"]

log = limited(logging.getLogger(__name__))

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
#: The most characters of a text in a problem.
MOST_TEXT = 500

#: The status of each failure code. Where trying again may help, it is 503 with the header Retry-After.
STATUS: Mapping[FailureCode, int] = {
    FailureCode.UNKNOWN_JOB: 404,
    FailureCode.UNKNOWN_STATE: 404,
    FailureCode.KEY_NOT_FOUND: 404,
    FailureCode.WRONG_KEY_TYPE: 400,
    FailureCode.DEADLINE_EXCEEDED: 504,
    FailureCode.UNSUPPORTED: 501,
    FailureCode.MALFORMED: 400,
    FailureCode.TOO_LARGE: 413,
    FailureCode.VERSION_MISMATCH: 502,
    FailureCode.UNAUTHENTICATED: 401,
    FailureCode.FORBIDDEN: 403,
    FailureCode.INTERNAL: 500,
    FailureCode.UNAVAILABLE: 503,
    FailureCode.TLS_FAILED: 502,
    FailureCode.COMPACTED: 410,
    FailureCode.SCAN_EXPIRED: 410,
    FailureCode.CANCELLED: 503,
    **{code: 503 for code in FailureCode if code.retry is not Retry.FATAL},
}
#: Failures to reach the query port name addresses of the network behind the gateway.
_OF_THE_NETWORK = (FailureCode.UNAVAILABLE, FailureCode.TLS_FAILED, FailureCode.VERSION_MISMATCH)

Problem = dict[str, Any]


def status_of(error: Exception) -> int:
    """The HTTP status of an error."""
    return STATUS[_failure_of(error).code]


def problem_of(error: Exception) -> Problem:
    """The problem details of an error."""
    failure = _failure_of(error)
    code = failure.code
    hidden = code in _OF_THE_NETWORK
    if hidden:
        log.warning("the query port cannot be used: %s", failure)
    return {
        "type": f"urn:qstate:failure:{code.name.lower()}",
        "title": failure.template,
        "status": STATUS[code],
        "detail": failure.template if hidden else _cut(str(failure if isinstance(error, QueryError) else error)),
        "code": code.name,
        "number": int(code),
        "retry": code.retry.name.lower(),
        "details": {} if hidden else {name: _cut(fact) for name, fact in printable(failure.details).items()},
    }


def _cut(fact: Any) -> Any:
    """A fact of a failure, which may repeat what a caller sent: without most of a long text."""
    return f"{fact[:MOST_TEXT]}..." if isinstance(fact, str) and len(fact) > MOST_TEXT else fact


def _failure_of(error: Exception) -> QueryError:
    if isinstance(error, QueryError):
        return error
    if isinstance(error, ConfigError):
        return MalformedRequest()
    if isinstance(error, SerializationError):
        return UnsupportedQuery()
    return ShuttingDown() if isinstance(error, ClosedError) else InternalFailure()


def answer_to(request: HTTPConnection, error: Exception) -> Response:
    """The answer to a request that failed."""
    if isinstance(error, HTTPException):
        problem = problem_of(MalformedRequest())
        problem |= {"status": error.status_code, "title": error.detail, "detail": error.detail}
        headers = dict(error.headers or {})
    else:
        # Nothing of an error that was not expected goes to the caller; the log has it.
        problem = problem_of(error if isinstance(error, QStateError) else InternalFailure())
        headers = {}
    status = problem["status"]
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    elif status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="qstate"'
    headers["Cache-Control"] = "no-store"
    return Response(json.encode(problem), status, headers, MEDIA_TYPE)
