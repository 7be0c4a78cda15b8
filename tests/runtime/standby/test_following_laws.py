"""Following, against a model: whatever a job does with its epoch logs, what is served is some committed epoch, whole.

The logs are real files, written by what task managers write them with; the job around them is the machine below.
"""

from __future__ import annotations

import shutil
import tempfile
from operator import add
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qstate.backends.contract import Change, ChangeOp, Isolation
from qstate.checkpoint.log.chain import LogIdentity
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.snapshots import WHOLE_BYTES, take_snapshot
from qstate.checkpoint.manifest import JobManifest, subtask_directory, write_final
from qstate.checkpoint.sources.following import FollowedOperator
from qstate.checkpoint.sources.history import JobHistory
from qstate.checkpoint.sources.opening import DeclaredStates, open_epoch_log
from qstate.checkpoint.sources.origins import origin_of
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.config import JobConfig
from qstate.descriptors import ReducingStateDescriptor
from qstate.keys import ColumnType, encode_key, key_group
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.standby.served_operator import ServedOperator, ServingSettings
from qstate.serializers import MessagePackSerializer

JOB, UID, QUERY = "job", "it", "query"
MAX_PARALLELISM = 8
KEYS = [f"key {number}" for number in range(10)]
#: Keys of the first epoch that are never queried: so many that later epochs change little, for partial snapshots.
FILLERS = [f"filler {number:050d}" for number in range(60)]
TOTAL = ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
NO_EPOCH = -1
#: The writes of an epoch: a new value for each key, None to delete it.
WRITES = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 999), max_size=4)


class FollowedJob(RuleBasedStateMachine):
    """A job that seals, commits, restarts, rescales and loses files; and a standby that looks now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.root = self.directory / "checkpoint"
        self.root.mkdir()
        self.manifest = JobManifest(JOB, MAX_PARALLELISM, (2,), {UID: QUERY})
        self.manifest.write(self.root)
        #: The state as of each committed epoch.
        self.committed: dict[int, dict[str, int]] = {NO_EPOCH: {}}
        self.reported = NO_EPOCH
        self.logs: dict[int, EpochLog] = {}
        #: The writes that each subtask has sealed in the running epoch.
        self.sealed: dict[int, dict[str, int | None]] = {}
        self.shown = NO_EPOCH
        self.registry = StateRegistry()
        settings = ServingSettings(JobConfig(), self.directory, ("127.0.0.1", 1))
        self.served = ServedOperator(UID, JobHistory(self.root, self.manifest), settings, self.registry, lambda: None)
        self.history = FollowedOperator(self.root, UID)

    @property
    def newest(self) -> int:
        return max(self.committed)

    def place(self, subtask: int) -> tuple[Path, LogIdentity]:
        directory = subtask_directory(self.root, UID, self.manifest.layout, subtask)
        return directory, LogIdentity(JOB, UID, subtask, self.manifest.parallelism, MAX_PARALLELISM)

    def log(self, subtask: int) -> EpochLog:
        """The log of a subtask, opened by the session that needs it."""
        if subtask not in self.logs:
            directory, identity = self.place(subtask)
            first = self.newest + 1
            origin = None
            if not directory.exists() and len(self.manifest.layouts) > 1:
                origin = origin_of(self.root, self.manifest, UID, identity.key_groups, first)
            declared = DeclaredStates(UID, [TOTAL], [ColumnType.STRING])
            self.logs[subtask] = open_epoch_log(directory, identity, lambda _: declared, origin, first_epoch=first)
        return self.logs[subtask]

    @rule(writes=WRITES)
    def seal(self, writes: dict[str, int | None]) -> None:
        """The next subtask seals the running epoch; all have to before it is committed."""
        waiting = [subtask for subtask in range(self.manifest.parallelism) if subtask not in self.sealed]
        if waiting:
            groups = self.place(waiting[0])[1].key_groups
            own = {key: value for key, value in writes.items() if key_group(key, MAX_PARALLELISM) in groups}
            filled = {
                key: 0 for key in FILLERS if self.newest == NO_EPOCH and key_group(key, MAX_PARALLELISM) in groups
            }
            self.log(waiting[0]).seal(self.newest + 1, [change(*one) for one in {**filled, **own}.items()])
            self.sealed[waiting[0]] = own

    @rule(writes=WRITES)
    def seal_all_and_commit(self, writes: dict[str, int | None]) -> None:
        while len(self.sealed) < self.manifest.parallelism:
            self.seal(writes)
        self.commit(reported=True)

    @precondition(lambda self: len(self.sealed) == self.manifest.parallelism)
    @rule(reported=st.booleans())
    def commit(self, reported: bool) -> None:
        """Spark commits the epoch; whether the driver comes to say so is another matter."""
        state = dict(self.committed[self.newest])
        for writes in self.sealed.values():
            state.update(writes)
        self.committed[self.newest + 1] = {key: value for key, value in state.items() if value is not None}
        self.sealed = {}
        if reported:
            self.reported = self.newest
            write_final(self.root, {QUERY: self.reported})

    @rule(retained=st.integers(1, 2), whole_bytes=st.sampled_from([0, WHOLE_BYTES]))
    def snapshot(self, retained: int, whole_bytes: int) -> None:
        """As the snapshots' process does for epochs that are final."""
        for subtask in self.logs:
            files = DurableDirectory(self.place(subtask)[0])
            take_snapshot(files, upto=self.newest, retained=retained, whole_bytes=whole_bytes)

    @rule()
    def restart(self) -> None:
        self.logs = {}

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        """Repeat the sealed writes of the running epoch."""
        if parallelism != self.manifest.parallelism:
            self.manifest = self.manifest.with_parallelism(parallelism)
            self.manifest.write(self.root)
            self.logs, self.sealed = {}, {}

    @precondition(lambda self: bool(self.sealed))
    @rule()
    def damage(self) -> None:
        """The newest file of a subtask is damaged by a crash; Spark gives its epoch again."""
        subtask = min(self.sealed)
        newest = max(self.place(subtask)[0].glob("*.log"))
        newest.write_bytes(newest.read_bytes()[:-5])
        self.logs.pop(subtask, None)
        del self.sealed[subtask]

    @rule()
    def look(self) -> None:
        manifest = JobManifest.read(self.root)
        assert manifest is not None
        self.history.look(manifest)
        committed = max(self.reported, self.history.proved)
        self.served.follow(self.history, manifest, committed, JobHistory(self.root, manifest))

    @precondition(lambda self: self.reported == self.newest and not self.sealed)
    @rule()
    def look_when_all_is_told(self) -> None:
        self.look()
        assert self.served.epoch == self.newest

    @invariant()
    def what_is_served_is_a_committed_epoch_and_never_an_older_one(self) -> None:
        assert self.shown <= self.served.epoch <= self.newest
        self.shown = self.served.epoch
        if self.shown != NO_EPOCH:
            epochs, found = self.read()
            assert epochs == {self.shown}
            assert found == self.committed[self.shown]

    def read(self) -> tuple[set[int], dict[str, Any]]:
        """The epochs that the registered readers answer with, and the state that they show together."""
        instances = list(self.registry.instances().values())
        assert sum(len(instance.key_groups) for instance in instances) == MAX_PARALLELISM
        epochs, found = set(), {}
        for instance in instances:
            keys = [key for key in KEYS if key_group(key, MAX_PARALLELISM) in instance.key_groups]
            epoch, values = instance.readers[Isolation.COMMITTED].get(instance.descriptor, None, keys)
            epochs.add(epoch)
            found.update(
                (key, MessagePackSerializer().loads(data))
                for key, data in zip(keys, values, strict=True)
                if isinstance(data, bytes)
            )
        return epochs, found

    def teardown(self) -> None:
        self.served.close()
        assert not self.registry.instances()
        shutil.rmtree(self.directory)


def change(key: str, value: int | None) -> Change:
    op, data = (ChangeOp.DELETE, b"") if value is None else (ChangeOp.PUT, MessagePackSerializer().dumps(value))
    return Change(op, "total", key_group(key, MAX_PARALLELISM), encode_key(None), encode_key(key), b"", data)


TestFollowedJob = FollowedJob.TestCase
