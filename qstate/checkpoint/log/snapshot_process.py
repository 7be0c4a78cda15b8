"""The process that makes one snapshot; its arguments are LOCATION EPOCH RETAINED COMPRESSION, then those of `LogLines`.

Rules of this module: arguments in, an exit code and log lines out; `snapshots` does the work. It reads the pickled
options of the storage from its standard input, because every user of the host can read arguments. It ends at once when
its standard input closes, so it does not outlive the process that started it.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
from contextlib import suppress

from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.storage.locations import open_directory
from qstate.errors import CheckpointError, ConfigError
from qstate.host.log_lines import LogLines, configure_logs

__all__ = ["main"]

log = logging.getLogger(__name__)

#: Rows and queries go before snapshots.
BACKGROUND_NICENESS = 10


def main() -> None:
    configure_logs(LogLines(*sys.argv[5:]))
    try:
        options = pickle.load(sys.stdin.buffer)
    except EOFError:
        sys.exit(1)
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    with suppress(OSError):
        os.nice(BACKGROUND_NICENESS)
    location, epoch, retained, compression = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    try:
        files = open_directory(location, options)
        taken = take_snapshot(files, upto=epoch, retained=retained, compression=compression)
    except (CheckpointError, ConfigError, OSError) as exc:
        log.error("%s", exc)
        sys.exit(1)
    if taken is not None:
        log.info("%s is the state as of epoch %d", files.path / taken.name, taken.epoch)


def _end_with_standard_input() -> None:
    # The descriptor itself: a thread inside sys.stdin would hold its lock, and the interpreter could not shut down.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
