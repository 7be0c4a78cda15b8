"""Draws the pictures of the documentation: `PYTHONPATH=. python docs/drawings/draw.py` writes the SVG files beside it.

Each function draws one picture. `inline.py` puts them into the pages of the site, so that their text can be selected.
"""

from __future__ import annotations

from pathlib import Path

from docs.drawings.canvas import WIDTH, Canvas

HERE = Path(__file__).parent


def front() -> Canvas:
    """The way of a query, and of a row."""
    canvas = Canvas(
        "front",
        "How a query and a row meet",
        "A client asks a client proxy, which asks the state server of the key's owner, which reads the state backend. "
        "Spark sends rows to your function, which writes the same state backend.",
        280,
    )
    canvas.box((10, 10), (170, 44), "client", "in any language")
    canvas.box((10, 90), (170, 58), "client proxy", "`:9069`", "of any task manager")
    canvas.box((10, 184), (170, 58), "state server", "`:9067`", "of the key's owner")
    canvas.box((220, 10), (170, 44), "Spark", "micro-batches")
    canvas.box((220, 90), (170, 58), "your function", "reads and writes", "the state of its key")
    canvas.box((220, 184), (170, 58), "state backend", "heap, RocksDB,", "or one of your own", kind="strong")
    canvas.arrow((95, 54), (95, 89))
    canvas.arrow((95, 148), (95, 183))
    canvas.arrow((180, 213), (219, 213))
    canvas.arrow((305, 54), (305, 89))
    canvas.arrow((305, 148), (305, 183), both=True)
    canvas.text((95, 266), "a query")
    canvas.text((305, 266), "a row")
    return canvas


def processes() -> Canvas:
    """Which process does what, and how they are connected."""
    canvas = Canvas(
        "processes",
        "The processes of a job",
        "The driver runs the job manager. On each executor host, Spark's Python worker runs a relay, which sends rows "
        "to a task manager process. That holds the state, and has a state server and a client proxy for clients.",
        560,
    )
    canvas.group((10, 10), (380, 118), "driver: your PySpark program")
    canvas.box((24, 40), (90, 76), "Job")
    canvas.box(
        (126, 40), (250, 76), "job manager", "subtask → task manager", "names and locations of state", "final epochs"
    )
    canvas.arrow((60, 129), (60, 179), both=True)
    canvas.text((70, 150), "control connections: TLS with", anchor="start")
    canvas.text((70, 166), "a certificate of the job", anchor="start")
    canvas.group((10, 180), (380, 296), "executor host: one or many")
    canvas.box((24, 210), (352, 60), "relay", "in a Python worker of Spark, which changes", "Arrow in, Arrow out")
    canvas.arrow((200, 271), (200, 317), both=True)
    canvas.text((210, 291), "rows, results: a Unix socket", anchor="start")
    canvas.text((210, 307), "on the same host, or TCP", anchor="start")
    canvas.group((24, 318), (352, 146), "task manager", "a process that lives as long as the job")
    canvas.box((36, 362), (328, 44), "subtask", "operator + state backend + epoch log", kind="strong")
    canvas.box((36, 414), (158, 40), "state server", "`:9067`")
    canvas.box((206, 414), (158, 40), "client proxy", "`:9069`")
    canvas.arrow((206, 434), (195, 434))
    canvas.box((206, 508), (158, 40), "client")
    canvas.arrow((285, 508), (285, 455))
    canvas.arrow((206, 528), (115, 528), (115, 455))
    canvas.text((106, 496), "once it knows", anchor="end")
    canvas.text((106, 512), "the owner", anchor="end")
    return canvas


def write_path() -> Canvas:
    """How rows reach the state."""
    canvas = Canvas(
        "write-path",
        "The write path of an epoch",
        "The rows of a streaming DataFrame get their key group in Spark SQL, are shuffled to their subtask, and go "
        "through a relay in mapInArrow to the task manager. Its results are a streaming DataFrame again.",
        440,
    )
    canvas.box((70, 10), (260, 34), "streaming DataFrame")
    canvas.box((30, 70), (340, 60), "key group, in Spark SQL", "`pmod(xxhash64(key columns),`", "`max_parallelism)`")
    canvas.box(
        (30, 156), (340, 60), "shuffle", "`repartitionById(parallelism,`", "`group * parallelism / max_parallelism)`"
    )
    canvas.box((30, 242), (150, 60), "relay", "`mapInArrow`", "in Spark's worker")
    canvas.box((250, 242), (140, 60), "task manager", "your function", "and its state", kind="strong")
    canvas.box((70, 376), (260, 50), "streaming DataFrame", "any sink, any trigger")
    canvas.arrow((200, 44), (200, 69))
    canvas.arrow((200, 130), (200, 155))
    canvas.arrow((105, 216), (105, 241))
    canvas.arrow((180, 260), (249, 260))
    canvas.arrow((250, 286), (181, 286))
    canvas.text((215, 254), "rows")
    canvas.text((215, 301), "results")
    canvas.arrow((105, 302), (105, 375))
    return canvas


def sealed_and_final() -> Canvas:
    """The life of an epoch."""
    canvas = Canvas(
        "sealed-and-final",
        "An epoch: begun, sealed, final",
        "An epoch begins, its rows are processed, and the subtask commits: the epoch is sealed. An attempt that failed "
        "before is rolled back. A sealed epoch that comes again gives its stored results once more. When Spark has "
        "committed the micro-batch, the epoch is final.",
        400,
    )
    middle, width = 60, 180
    canvas.box((middle, 10), (width, 34), "begin(n)")
    canvas.box((middle, 76), (width, 34), "rows, results")
    canvas.box((middle, 142), (width, 34), "commit")
    canvas.box((middle, 208), (width, 44), "SEALED", "it is on disk", kind="strong")
    canvas.box((middle, 340), (width, 44), "FINAL", "committed reads show it", kind="strong")
    for top, bottom in ((44, 75), (110, 141), (176, 207), (252, 339)):
        canvas.arrow((middle + width // 2, top), (middle + width // 2, bottom))
    canvas.arrow((middle, 93), (30, 93), (30, 27), (middle - 1, 27))
    canvas.arrow((middle, 159), (30, 159), (30, 27), (middle - 1, 27))
    canvas.text((258, 64), "fails before the seal:", anchor="start")
    canvas.text((258, 80), "roll back to n - 1,", anchor="start")
    canvas.text((258, 96), "process again", anchor="start")
    canvas.arrow((middle + width, 222), (256, 222), (256, 240), (middle + width + 1, 240))
    canvas.text((264, 220), "epoch n again:", anchor="start")
    canvas.text((264, 236), "its stored results", anchor="start")
    canvas.text((264, 252), "once more", anchor="start")
    canvas.text((160, 292), "Spark commits the micro-batch", anchor="start")
    canvas.text((250, 356), "announced by Spark,", anchor="start")
    canvas.text((250, 372), "proved by begin(n + 1)", anchor="start")
    return canvas


def _lanes(canvas: Canvas, left: str, right: str, height: int) -> None:
    for x, name in ((10, left), (260, right)):
        canvas.box((x, 10), (130, 34), name, kind="strong")
        canvas.arrow((x + 65, 44), (x + 65, height - 8))


def _message(canvas: Canvas, y: int, *lines: str, back: bool = False) -> None:
    for number, line in enumerate(lines):
        canvas.text((200, y - 6 - 16 * (len(lines) - 1 - number)), line)
    canvas.arrow((324, y), (76, y)) if back else canvas.arrow((76, y), (324, y))


def time_of_epochs() -> Canvas:
    """Who decides the watermark."""
    canvas = Canvas(
        "time",
        "The time of an epoch",
        "When a subtask begins an epoch it tells the job manager what it has reached, and gets the watermark and the "
        "processing time of the epoch. Due timers fire, then rows are processed. When it has sealed the epoch, it "
        "reports its greatest event time and its first timers.",
        330,
    )
    _lanes(canvas, "subtask", "job manager", 320)
    _message(canvas, 84, "begin(n), what it has reached")
    _message(canvas, 136, "watermark and", "processing time of n", back=True)
    canvas.box((10, 156), (190, 44), "due timers fire", "then rows are processed")
    _message(canvas, 252, "SEALED n: greatest event", "time, first timers")
    canvas.box((200, 266), (190, 44), "the time of n + 1,", "and whether a tick is due")
    return canvas


def subscriptions() -> Canvas:
    """A poll waits at the owner."""
    canvas = Canvas(
        "subscriptions",
        "A subscription: a poll that waits",
        "A client polls the owner of a range of key groups from an epoch on. If there are committed changes, the owner "
        "answers at once. If not, it keeps the request, not a thread, and answers when an epoch becomes final.",
        330,
    )
    _lanes(canvas, "client", "owner", 320)
    _message(canvas, 84, "Poll(range, from epoch)")
    _message(canvas, 136, "there are committed", "changes: at once", back=True)
    _message(canvas, 180, "Poll(range, next epoch)")
    canvas.box((210, 196), (180, 44), "there are none:", "keeps the request")
    canvas.box((210, 252), (180, 30), "an epoch is final")
    _message(canvas, 306, "its changes", back=True)
    return canvas


LAYERS = (
    ("cli", "the command qstate, one module a command"),
    ("demo", "a job with its data and a page"),
    ("gateway", "the state of running jobs over HTTP"),
    ("spark, testing", "the PySpark edge · without Spark"),
    ("client, standby", "short names"),
)
RUNTIME = (
    ("tasks, standby", "task managers · state without the job"),
    ("client, serving, relay, job", "clients, port, tasks, driver"),
    ("routing, net, control", "owners · threads · calls in a job"),
)
BELOW = (
    ("operators", "functions, state handles, Arrow batches"),
    ("checkpoint.sources", "stored state to read from"),
    ("checkpoint.manifest", "whose directory, its layouts"),
    ("checkpoint.log", "the epoch log of one subtask"),
    ("checkpoint.storage", "a disk or an object store"),
    ("backends", "contract · heap · byte_stores, RocksDB"),
    ("protocol", "messages and frames, no I/O"),
    ("views, evolution, config, descriptors", ""),
    ("serializers, keys, tls, installation", ""),
    ("values", "types of values, their stored forms"),
    ("host", "files, disks, ports, forks, log lines"),
    ("errors", ""),
)


def layers() -> Canvas:
    """What may import what."""
    canvas = Canvas(
        "layers",
        "The layers of the package",
        "From top to bottom: " + "; ".join(name for name, _ in (*LAYERS, *RUNTIME, *BELOW)) + ".",
        610,
    )
    y = 10
    for name, meaning in LAYERS:
        _row(canvas, y, name, meaning, 10)
        y += 28
    canvas.group((4, y + 2), (392, 112), "runtime")
    y += 26
    for name, meaning in RUNTIME:
        _row(canvas, y, name, meaning, 12)
        y += 28
    y += 10
    for name, meaning in BELOW:
        _row(canvas, y, name, meaning, 10)
        y += 28
    return canvas


def _row(canvas: Canvas, y: int, name: str, meaning: str, x: int) -> None:
    canvas.box((x, y), (WIDTH - 2 * x, 24), kind="box")
    canvas.text((x + 8, y + 16), f"`{name}`", anchor="start")
    if meaning:
        canvas.text((WIDTH - x - 8, y + 16), meaning, anchor="end")


def scale() -> Canvas:
    """Ten thousand subtasks."""
    canvas = Canvas(
        "scale",
        "A job of ten thousand subtasks",
        "Clients ask a tier of proxies, which ask ten thousand owners. The proxies get the table of owners from the "
        "job manager. The owners write epoch logs, from which standbys read.",
        400,
    )
    canvas.box((110, 10), (180, 44), "clients", "a million gets a second")
    canvas.box((10, 96), (230, 58), "proxies", "some hundred of their own, or", "2,000 of the task managers'")
    canvas.box((270, 96), (120, 58), "job manager", "the table of", "owners, 0.7 MB")
    canvas.box(
        (10, 204),
        (380, 58),
        "10,000 task managers",
        "32,768 key groups, each has one owner",
        "100 gets a second each",
        kind="strong",
    )
    canvas.box((10, 320), (200, 44), "epoch logs", "on shared storage")
    canvas.box((260, 320), (130, 58), "standbys", "all subtasks of", "a smaller job")
    canvas.arrow((150, 54), (150, 95))
    canvas.arrow((241, 125), (269, 125), both=True)
    canvas.arrow((125, 154), (125, 203))
    canvas.arrow((330, 203), (330, 155))
    canvas.arrow((110, 262), (110, 319))
    canvas.arrow((210, 342), (259, 342))
    return canvas


DRAWINGS = {
    "front": front,
    "processes": processes,
    "write-path": write_path,
    "sealed-and-final": sealed_and_final,
    "time": time_of_epochs,
    "subscriptions": subscriptions,
    "layers": layers,
    "scale": scale,
}


def main() -> None:
    for name, draw in DRAWINGS.items():
        (HERE / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
