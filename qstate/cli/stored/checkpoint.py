"""The commands for a job's stored state: `qstate checkpoint show | verify | new-history` and `qstate savepoint`.

Rules of this module: arguments in, calls of `qstate.checkpoint`, text out. The commands need neither the job nor its
code, neither Spark nor (except for compressed checkpoints) PyArrow, and do not affect a running job: `new-history`, the
only one that writes into a checkpoint directory, is for stopped jobs. `dump` has the command `qstate checkpoint dump`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qstate.checkpoint import Savepoint, StateSource, StoredOperator, open_source, verify, write_savepoint
from qstate.checkpoint.log.chain import Chain, size_of
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.checkpoint.sources.entries import read_changes, read_operator_states
from qstate.checkpoint.sources.history import JobHistory
from qstate.checkpoint.storage.locations import open_directory
from qstate.cli.arguments import add_storage_option, storage_options
from qstate.cli.output.formats import JSON, TABLE, add_format
from qstate.cli.output.progress import shown_count, shown_progress
from qstate.cli.output.tables import table
from qstate.cli.output.terminal import RED, say, shown, styled
from qstate.cli.stored.dump import add_dump_arguments
from qstate.evolution import StateSchema
from qstate.keys import KeyGroupRange
from qstate.runtime.job.new_history import begin_new_history

__all__ = ["add_checkpoint_commands"]

SOUND, DAMAGED = 0, 1

STATE_HEADS = ("STATE", "KIND", "QUERYABLE AS", "TYPE", "SERIALIZER", "ENTRIES", "BYTES")
LIST_HEADS = ("OPERATOR STATE", "DISTRIBUTION", "TYPE", "SERIALIZER", "ELEMENTS", "BYTES")
SUBTASK_HEADS = ("SUBTASK", "KEY GROUPS", "EPOCHS", "SNAPSHOTS", "DAMAGED")
STACK_HEADS = ("SUBTASK", "SNAPSHOT", "EPOCH", "BYTES", "HOLDS")

Plain = dict[str, Any]
#: The number of entries and of their bytes, by state and key group.
Totals = dict[tuple[str, int], list[int]]


def add_checkpoint_commands(commands: Any) -> None:
    """Add the commands to argparse's subparsers."""
    checkpoint = commands.add_parser("checkpoint", help="read a checkpoint directory or a savepoint")
    parts = checkpoint.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = _command(parts, "show", "print a summary: operators, states, epochs, sizes")
    show.add_argument("--key-groups", action="store_true", help="also print the sizes of each key group")
    show.add_argument("--epochs", action="store_true", help="also print the epochs and snapshots of each subtask")
    add_format(show, TABLE, JSON)
    show.set_defaults(run=_show)
    add_dump_arguments(_command(parts, "dump", "print every entry, one per line"))
    check = _command(parts, "verify", "read every byte, and report damage")
    add_format(check, TABLE, JSON)
    check.set_defaults(run=_verify)
    begin = parts.add_parser(
        "new-history", help="make the followers of a stopped job notice that it goes back to a copy"
    )
    _add_checkpoint_dir(begin)
    add_storage_option(begin)
    begin.set_defaults(run=_new_history)
    savepoint = commands.add_parser("savepoint", help="write a savepoint of a running or stopped job")
    _add_checkpoint_dir(savepoint)
    savepoint.add_argument("target", metavar="TARGET", help="a new or empty directory, or its URL")
    add_storage_option(savepoint)
    savepoint.set_defaults(run=_savepoint)


def _add_checkpoint_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint_dir", metavar="CHECKPOINT_DIR", help="the job's checkpoint directory, or its URL")


def _command(commands: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what)
    parser.add_argument("location", metavar="LOCATION", help="a job's checkpoint directory, or a savepoint; or its URL")
    add_storage_option(parser)
    return parser


# -- show -----------------------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> None:
    source = open_source(arguments.location, storage_options(arguments))
    described = _described(source)
    described["operators"] = [
        _operator(source, stored, key_groups=arguments.key_groups, epochs=arguments.epochs)
        for _, stored in sorted(source.operators().items())
    ]
    if arguments.format == JSON:
        print(json.dumps(described))
    else:
        for line in _lines(described):
            say(line)


def _described(source: StateSource) -> Plain:
    found: Plain = {"location": source.location, "job": source.job, "max_parallelism": source.max_parallelism}
    if isinstance(source, Savepoint):
        return {"kind": "savepoint", **found, "created": source.created}
    if isinstance(source, JobHistory):
        manifest = source.manifest
        return {
            "kind": "checkpoint",
            **found,
            "layouts": list(manifest.layouts),
            "restored_from": manifest.restored_from,
        }
    return found


def _operator(source: StateSource, stored: StoredOperator, *, key_groups: bool, epochs: bool) -> Plain:
    totals = _totals(source, stored)
    found: Plain = {
        "uid": stored.uid,
        "query": stored.query,
        "epoch": stored.epoch,
        "sealed": stored.sealed,
        "committed": stored.committed,
        "parallelism": stored.parallelism,
        "states": [_state(plain, totals) for plain in stored.states],
        "operator_states": _lists(read_operator_states(source, stored)),
    }
    if key_groups:
        numbers = sorted({group for _, group in totals})
        found["key_groups"] = [{"key_group": number, **_sum(totals, group=number)} for number in numbers]
    if epochs:
        subtasks = source.subtasks(stored.uid) if isinstance(source, JobHistory) else []
        found["subtasks"] = [_subtask(groups, chain) for groups, chain in subtasks]
    return found


def _totals(source: StateSource, stored: StoredOperator) -> Totals:
    totals: Totals = {}
    with shown_count(f"entries of operator {stored.uid!r}") as count:
        for number, change in enumerate(read_changes(source, stored), 1):
            total = totals.setdefault((change.state, change.group), [0, 0])
            total[0] += 1
            total[1] += len(change.namespace) + len(change.key) + len(change.map_key) + len(change.data)
            count(number)
    return totals


def _state(plain: Mapping[str, Any], totals: Totals) -> Plain:
    schema = StateSchema.from_plain(plain)
    return {
        "name": schema.name,
        "kind": schema.kind.value,
        "queryable_name": schema.queryable_name,
        "key_types": list(plain.get("key_types", ())),
        "map_key_type": None if schema.map_key_type is None else str(schema.map_key_type),
        **_data_facts(schema),
        **_sum(totals, state=schema.name),
    }


def _data_facts(schema: StateSchema) -> Plain:
    return {
        "value_type": str(schema.value_type),
        "schema_version": schema.schema_version,
        "serializer": schema.serializer,
        "serializer_version": schema.serializer_version,
    }


def _lists(of_subtasks: Sequence[OperatorState]) -> list[Plain]:
    """The operator's lists by name, all subtasks together. A list with two schemas among its subtasks has two rows."""
    found: dict[tuple[str, str], Plain] = {}
    for one in (one for state in of_subtasks for one in state):
        schema = StateSchema.from_plain(one.schema)
        plain = found.setdefault(
            (schema.name, str(schema)),
            {
                "name": schema.name,
                "distribution": one.distribution.value,
                **_data_facts(schema),
                "elements": 0,
                "bytes": 0,
            },
        )
        plain["elements"] += len(one.elements)
        plain["bytes"] += one.size
    return [plain for _, plain in sorted(found.items())]


def _sum(totals: Totals, *, state: str | None = None, group: int | None = None) -> Plain:
    found = [one for place, one in totals.items() if state in (None, place[0]) and group in (None, place[1])]
    return {"entries": sum(entries for entries, _ in found), "bytes": sum(size for _, size in found)}


def _subtask(groups: KeyGroupRange, chain: Chain) -> Plain:
    snapshots = [base.epoch for base in reversed(chain.bases) if base is not None]
    epochs = {*snapshots, *(segment.epoch for segment in chain.segments)} - {-1}
    newest = chain.bases[0]
    return {
        "subtask": chain.identity.subtask,
        "parallelism": chain.identity.parallelism,
        "key_groups": [groups.start, groups.stop - 1],
        "epochs": [list(one) for one in _runs(sorted(epochs))],
        "snapshots": snapshots,
        "stack": [
            {
                "file": one.name,
                "epoch": one.epoch,
                "bytes": size_of(chain.files, one),
                "since": None if one.below is None else one.below.name,
            }
            for one in (newest.stack if newest is not None else ())
        ],
        "damaged": chain.damaged,
        "directory": str(chain.files.path),
    }


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and last number of each run without a gap."""
    first: int | None = None
    for number, following in zip(numbers, [*numbers[1:], None], strict=True):
        first = number if first is None else first
        if following != number + 1:
            yield first, number
            first = None


def _lines(described: Plain) -> Iterator[str]:
    if described["kind"] == "savepoint":
        yield f"savepoint of job {described['job']!r}, created {described['created']}"
    else:
        yield f"checkpoint directory of job {described['job']!r}"
        yield f"layouts (parallelism): {', '.join(map(str, described['layouts']))}; the last one is in use"
        if described["restored_from"]:
            yield f"restored from {described['restored_from']}"
    yield f"max_parallelism: {described['max_parallelism']}"
    for operator in described["operators"]:
        yield ""
        yield from _operator_lines(operator)


def _operator_lines(operator: Plain) -> Iterator[str]:
    yield f"operator {operator['uid']!r} of streaming query {operator['query']}"
    yield f"epoch {operator['epoch']} is final, epoch {operator['sealed']} is the newest sealed epoch"
    if operator["committed"] > operator["epoch"]:
        yield f"epoch {operator['committed']} was committed, but files of it are damaged or missing"
    yield from _table(STATE_HEADS, map(_state_row, operator["states"]))
    if operator["operator_states"]:
        columns = ("name", "distribution", "value_type", "serializer")
        lists = [
            (*(one[column] for column in columns), f"{one['elements']:,}", f"{one['bytes']:,}")
            for one in operator["operator_states"]
        ]
        yield from _table(LIST_HEADS, lists)
    if "key_groups" in operator:
        rows = [
            (group["key_group"], f"{group['entries']:,}", f"{group['bytes']:,}") for group in operator["key_groups"]
        ]
        yield from _table(("KEY GROUP", "ENTRIES", "BYTES"), rows)
    if "subtasks" in operator:
        yield from _table(SUBTASK_HEADS, map(_subtask_row, operator["subtasks"]))
        stacks = [row for subtask in operator["subtasks"] for row in _stack_rows(subtask)]
        if stacks:
            yield from _table(STACK_HEADS, stacks)


def _state_row(state: Plain) -> tuple[object, ...]:
    kind_of_values = state["value_type"]
    if state["map_key_type"] is not None:
        kind_of_values = f"{state['map_key_type']} to {kind_of_values}"
    return (
        state["name"],
        state["kind"],
        state["queryable_name"] or "-",
        kind_of_values,
        state["serializer"],
        f"{state['entries']:,}",
        f"{state['bytes']:,}",
    )


def _subtask_row(subtask: Plain) -> tuple[object, ...]:
    epochs = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in subtask["epochs"])
    return (
        f"{subtask['subtask']} of {subtask['parallelism']}",
        "{}-{}".format(*subtask["key_groups"]),
        epochs or "-",
        ", ".join(map(str, subtask["snapshots"])) or "-",
        subtask["damaged"] or "-",
    )


def _stack_rows(subtask: Plain) -> Iterator[tuple[object, ...]]:
    """The files of the newest snapshot, the full one first."""
    for one in subtask["stack"]:
        yield (
            subtask["subtask"],
            one["file"],
            one["epoch"],
            f"{one['bytes']:,}",
            "all" if one["since"] is None else f"changes since {one['since']}",
        )


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    return table([heads, *rows], indent="  ")


# -- verify, new-history and savepoint ------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace) -> int:
    files, size, damages = 0, 0, []
    with shown_count("files") as count:
        for found in verify(arguments.location, storage_options(arguments)):
            files += 1
            size += found.size
            count(files)
            if found.damage is not None:
                damages.append({"path": found.path, "damage": found.damage})
                if arguments.format == TABLE:
                    print(styled("DAMAGED:", RED), shown(found.damage), flush=True)
    if arguments.format == JSON:
        print(json.dumps({"files": files, "bytes": size, "damaged": damages}))
    elif damages:
        print(f"{len(damages)} of {files} files are damaged or missing")
    else:
        print(f"{files} files, {size:,} bytes: no damage")
    return DAMAGED if damages else SOUND


def _new_history(arguments: argparse.Namespace) -> None:
    manifest = begin_new_history(open_directory(arguments.checkpoint_dir, storage_options(arguments)))
    say(
        f"the epochs of job {manifest.job!r} in {arguments.checkpoint_dir} have a new history: subscriptions, caches, "
        "streams of changes and standbys do not take them for those that they know"
    )


def _savepoint(arguments: argparse.Namespace) -> None:
    options = storage_options(arguments)
    source = open_source(arguments.checkpoint_dir, options)
    stored = source.operators()
    with shown_progress() as report:
        written = write_savepoint(source, open_directory(arguments.target, options), progress=report)
    for uid, operator in sorted(written.operators().items()):
        say(f"operator {uid!r}: {written.entries(uid):,} entries as of epoch {operator.epoch}")
        if uid in stored and operator.epoch < stored[uid].committed:
            print(
                f"qstate: warning: epoch {stored[uid].committed} of operator {uid!r} was committed, but files of it "
                "are damaged or missing",
                file=sys.stderr,
            )
    say(f"savepoint of job {written.job!r} in {arguments.target}")
