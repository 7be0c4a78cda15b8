r"""The scripts that connect bash, zsh and fish with the engine, and the form of its answers for each.

Rules of this module: it knows shells, and neither parsers nor names. A script runs `qstate __complete SHELL ...`, and
never evaluates what that prints.

    bash    gets the line up to the cursor, because bash splits words at `=` and `:`. Prints words that are quoted by
            backslashes, and end where bash's own word ends
    zsh     gets the words, the incomplete one last. Prints word, tab, description; zsh quotes
    fish    the same

A line with nothing but a tab asks for the names of files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from qstate.cli.completion.engine import Answer
from qstate.cli.output.terminal import shown

__all__ = ["SCRIPTS", "answer_lines", "split_line", "words_of"]

PLACES = "\t"
#: Everything else gets a backslash for bash.
_PLAIN = re.compile(r"[^\w@%+=:,./-]", re.ASCII)
#: Where bash begins a new word, beside spaces.
_BREAKS = "=:"

SCRIPTS = {
    "bash": r"""# bash completion for qstate: eval "$(qstate completion bash)"
_qstate_complete() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [ "$line" = $'\t' ]; then
            compopt -o default 2>/dev/null
        else
            COMPREPLY+=("$line")
            case $line in *=) compopt -o nospace 2>/dev/null ;; esac
        fi
    done < <("$1" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null </dev/null)
}
complete -F _qstate_complete qstate
""",
    "zsh": r"""#compdef qstate
# zsh completion for qstate: eval "$(qstate completion zsh)", after compinit
_qstate() {
    local line
    local -a found shown
    while IFS= read -r line; do
        if [[ $line == $'\t' ]]; then
            _files
        else
            found+=("${line%%$'\t'*}")
            shown+=("${line/$'\t'/  -- }")
        fi
    done < <("$words[1]" __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)
    (( $#found )) && compadd -l -d shown -a found
}
if [ "$funcstack[1]" = _qstate ]; then
    _qstate "$@"
else
    compdef _qstate qstate
fi
""",
    "fish": r"""# fish completion for qstate: qstate completion fish | source
function __qstate_complete
    set -l words (commandline -opc)
    for line in ($words[1] __complete fish $words[2..-1] (commandline -ct) 2>/dev/null </dev/null)
        if test "$line" = \t
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c qstate -f -a '(__qstate_complete)'
""",
}


def words_of(shell: str, arguments: Sequence[str]) -> tuple[list[str], str] | None:
    """The words of a command line, and the incomplete one; None where nothing can be completed."""
    if shell == "bash":
        found = split_line(arguments[0]) if arguments else None
        return None if not found else (found[1:-1], found[-1])
    return list(arguments[:-1]), arguments[-1] if arguments else ""


def split_line(line: str) -> list[str] | None:
    """The words of a line, the last one as far as it is typed. None within quotes."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    if not line or (line[-1].isspace() and not line.endswith("\\ ")):
        words.append("")
    return words


def answer_lines(shell: str, answer: Answer, incomplete: str) -> Iterator[str]:
    """What the script reads."""
    if answer.places:
        yield PLACES
    for one in answer.candidates:
        if shell == "bash":
            # Quoted where the person wrote it: what is before the last break stays as it is.
            typed = max(incomplete.rfind(mark) for mark in _BREAKS) + 1
            yield _PLAIN.sub(lambda found: found[0] if ord(found[0]) > 127 else f"\\{found[0]}", one.text[typed:])
        else:
            about = shown(" ".join(one.about.split()))
            yield f"{one.text}\t{about}" if about else one.text
