"""`qstate token`: a token and its digest, neither of which is ever an argument."""

from __future__ import annotations

import io

import pytest

from qstate.cli import main as cli
from qstate.runtime.serving.access.rights import digest_of


def test_a_token_comes_with_its_digest(capsys: pytest.CaptureFixture[str]) -> None:
    made = set()
    for _ in range(2):
        assert cli.main(["token"]) == cli.SUCCESS
        (_, token), (_, digest) = (line.split() for line in capsys.readouterr().out.splitlines())
        assert len(token) >= 43 and digest == digest_of(token.encode())
        made.add(token)
    assert len(made) == 2


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_digest_of_a_token_is_printed(
    end: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"open sesame{end}"))
    assert cli.main(["token", "--digest"]) == cli.SUCCESS
    assert capsys.readouterr().out.strip() == digest_of(b"open sesame")


@pytest.mark.parametrize("given", ["", "\n", "x" * 4097])
def test_what_is_no_token_is_refused(
    given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    assert cli.main(["token", "--digest"]) == cli.ERROR
    assert "expected a token of 1 to 4096 bytes" in capsys.readouterr().err
