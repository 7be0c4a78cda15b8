"""What may come next on a command line: reads the parsers, and asks for names.

Rules of this module: words in, candidates out. It knows argparse, and no shell. Names come from a `Names`, which may
ask a proxy; it is asked for what is completed only. Candidates that are not printable are left out: a name of somebody
else must not become more than a word.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Answer", "Candidate", "Names", "complete"]

#: The placeholders of arguments that are names of files or directories.
PLACES = frozenset(("FILE", "LOCATION", "CHECKPOINT_DIR", "TARGET", "DIR"))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may come next, and what it is."""

    text: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The candidates; with `places` also the names of files."""

    candidates: Sequence[Candidate] = ()
    places: bool = False


class Names(Protocol):
    """Looks names up. `given` are the arguments so far, by name. No method raises or waits long."""

    def of(self, placeholder: str, given: argparse.Namespace, incomplete: str) -> Iterable[Candidate]:
        """Candidates for the argument of a placeholder, such as JOB."""


@dataclass
class _Walk:
    """The parser that the words have led to, and what they gave."""

    parser: argparse.ArgumentParser
    given: dict[str, list[str]] = field(default_factory=dict)
    #: The option whose value comes next.
    option: argparse.Action | None = None
    #: The words are arguments, not options: `--` was there.
    plain: bool = False
    place: int = 0
    lost: bool = False

    def positional(self) -> argparse.Action | None:
        found = self.parser._get_positional_actions()
        return found[self.place] if self.place < len(found) else None

    def take(self, word: str) -> None:
        """Go on by one word."""
        options = self.parser._option_string_actions
        if self.option is not None:
            self._give(self.option, word)
            self.option = None
        elif word == "--" and not self.plain:
            self.plain = True
        elif word.startswith("-") and not self.plain:
            name, equals, value = word.partition("=")
            action = options.get(name)
            if action is not None and action.nargs != 0 and not equals:
                self.option = action
            elif action is not None:
                self._give(action, value)
        else:
            self._argument(word)

    def _argument(self, word: str) -> None:
        action = self.positional()
        if action is None:
            return
        if isinstance(action, argparse._SubParsersAction):
            found = action.choices.get(word)
            self.lost = found is None
            if found is not None:
                self.parser, self.place = found, 0
            return
        self._give(action, word)
        if action.nargs not in ("*", "+"):
            self.place += 1

    def _give(self, action: argparse.Action, word: str) -> None:
        self.given.setdefault(action.dest, []).append(word)

    def arguments(self) -> argparse.Namespace:
        """The arguments so far, lists for those that may be repeated."""
        found = dict(self.parser._defaults)
        actions = {action.dest: action for action in self.parser._actions}
        for name, words in self.given.items():
            action = actions.get(name)
            if action is None:
                continue
            several = isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")
            found[name] = words if several else _value(action, words[-1])
        return argparse.Namespace(**{**dict.fromkeys(actions), **found})


def complete(parser: argparse.ArgumentParser, words: Sequence[str], incomplete: str, names: Names) -> Answer:
    """What may stand in the place of the incomplete word after these words of a command line."""
    walk = _Walk(parser)
    for word in words:
        walk.take(word)
    if walk.lost:
        return Answer()
    if walk.option is not None:
        return _values(walk.option, walk, incomplete, names)
    if incomplete.startswith("-") and not walk.plain:
        name, equals, value = incomplete.partition("=")
        action = walk.parser._option_string_actions.get(name)
        if equals and action is not None and action.nargs != 0:
            found = _values(action, walk, value, names)
            return Answer([Candidate(f"{name}={one.text}", one.about) for one in found.candidates])
        return _matching(_options(walk.parser), incomplete)
    action = walk.positional()
    return Answer() if action is None else _values(action, walk, incomplete, names)


def _options(parser: argparse.ArgumentParser) -> Iterable[Candidate]:
    for option, action in parser._option_string_actions.items():
        if option.startswith("--") and action.help is not argparse.SUPPRESS:
            yield Candidate(option, _help(action))


def _values(action: argparse.Action, walk: _Walk, incomplete: str, names: Names) -> Answer:
    if isinstance(action, argparse._SubParsersAction):
        return _matching((Candidate(one.dest, one.help or "") for one in action._choices_actions), incomplete)
    if action.choices is not None:
        return _matching((Candidate(str(one)) for one in action.choices), incomplete)
    placeholder = str(action.metavar)
    if placeholder in PLACES:
        return Answer(places=True)
    return _matching(names.of(placeholder, walk.arguments(), incomplete), incomplete)


def _matching(found: Iterable[Candidate], incomplete: str) -> Answer:
    return Answer([one for one in found if one.text.startswith(incomplete) and one.text.isprintable() and one.text])


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default}


def _value(action: argparse.Action, word: str) -> Any:
    """The value of a word in the action's type; None for one that does not fit."""
    if isinstance(action, argparse._StoreConstAction):
        return action.const
    convert: Callable[[str], Any] = action.type if callable(action.type) else str
    try:
        return convert(word)
    except ValueError:
        return None
