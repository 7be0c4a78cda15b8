"""Two values that should have been the same, in words: what was expected, what was found, and where they part.

Rules of this module: it turns values into a few lines, however large they are, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

__all__ = ["labelled", "shortened"]

#: Characters of a value that are shown, and of one part of it.
_MOST, _MOST_OF_A_PART = 300, 80
#: Items of a container that are shown on either side; a container of millions costs no more than one of these.
_MOST_ITEMS = 40
_SEQUENCES = (list, tuple, str, bytes)


def labelled(found: Any, expected: Any) -> list[str]:
    """`expected: ...` and `found: ...`, and where they differ when that is not seen at once."""
    whole, parts = _shown(expected), _shown(found)
    lines = [f"expected: {shortened(whole)}", f"found:    {shortened(parts)}"]
    if max(len(whole), len(parts)) > _MOST:
        lines += islice(_differences(found, expected), 1)
    return lines


def shortened(text: str, most: int = _MOST) -> str:
    """The beginning and the end of a text, and how much is between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters ... {text[-half:]}"


def _shown(value: Any) -> str:
    """As `repr` does, but for long values by their ends."""
    if type(value) in _SEQUENCES and len(value) > 2 * _MOST:
        ends = (repr(value[:_MOST_ITEMS]), repr(value[-_MOST_ITEMS:]))
        return f"{type(value).__name__} of {len(value):,}: {ends[0]} ... {' ' * _MOST} ... {ends[1]}"
    return repr(value)


def _differences(found: Any, expected: Any) -> Iterator[str]:
    try:
        if isinstance(expected, Mapping) and isinstance(found, Mapping):
            yield from _of_mappings(found, expected)
        elif type(expected) is type(found) and isinstance(expected, _SEQUENCES):
            yield from _of_sequences(found, expected)
    except Exception:  # values of somebody else's types: comparing them may do anything
        return


def _of_mappings(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in expected.items():
        if key not in found:
            yield f"differ at [{_part(key)}]: expected {_part(value)}, found nothing"
        elif found[key] != value:
            yield f"differ at [{_part(key)}]: expected {_part(value)}, found {_part(found[key])}"
    for key, value in found.items():
        if key not in expected:
            yield f"differ at [{_part(key)}]: expected nothing, found {_part(value)}"


def _of_sequences(found: Sequence[Any], expected: Sequence[Any]) -> Iterator[str]:
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            if isinstance(expected, str | bytes):
                one, other = expected[number : number + _MOST_ITEMS], found[number : number + _MOST_ITEMS]
            yield f"differ at [{number}]: expected {_part(one)}, found {_part(other)}"
    if len(expected) != len(found):
        yield f"differ in length: expected {len(expected)}, found {len(found)}"


def _part(value: Any) -> str:
    return shortened(_shown(value), _MOST_OF_A_PART)
