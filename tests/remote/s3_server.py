"""An S3 server of its own process, on loopback: moto, which speaks the protocol over HTTP and keeps objects in memory.

Rules of this module: it decides nothing about S3. Requests are served one after the other, as S3 seems to do for one
object: moto itself looks for an object, and then puts it, with nothing that keeps two threads apart. Answers can be
lost on the way: what was asked for has then been done.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

BUCKET = "bucket"
CREDENTIALS = {"key": "qstate", "secret": "s3-secret"}


class S3Server:
    """An S3 server, started by the constructor. `stop` ends it; after `pause` it answers no request until `resume`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.remote.s3_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def options(self) -> dict[str, Any]:
        """The options of a filesystem that reaches it, and says so when it cannot."""
        return {
            **CREDENTIALS,
            "endpoint_url": f"http://127.0.0.1:{self.port}",
            "client_kwargs": {"region_name": "eu-central-1"},
            "config_kwargs": {"retries": {"max_attempts": 0}},
        }

    @property
    def impatient(self) -> dict[str, Any]:
        """Those of one that gives up soon."""
        limits = {"read_timeout": 0.4, "retries": {"max_attempts": 0}}
        return {**self.options, "config_kwargs": limits, "upload_timeout_s": 1}

    def pause(self) -> None:
        """Stop the process: its kernel still accepts requests, but nothing answers them until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def lose_answers(self, count: int) -> None:
        """For so many requests from now on, do what is asked for and end the connection without a word."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"%d\n" % count)
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"done\n"

    def stop(self) -> None:
        """Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _main() -> None:
    # moto takes credentials for its own client from the environment, of which it makes no use here
    os.environ.update({"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"})
    from moto.server import create_backend_app  # noqa: PLC0415  # for this process only: it takes a second
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = create_backend_app("s3")
    one_by_one, to_lose = threading.Lock(), [0]

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with one_by_one:
            answer = list(app(environ, start_response))
            if to_lose[0]:
                to_lose[0] -= 1
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    for line in sys.stdin:  # until the tests are over
        to_lose[0] = int(line)
        print("done", flush=True)


if __name__ == "__main__":
    _main()
