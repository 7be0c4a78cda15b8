"""Laws of listening: the order of ports, and the error when every port is taken."""

from __future__ import annotations

import socket

import pytest

from qstate.errors import ConfigError
from qstate.runtime.net.listener import listen


def test_first_free_port_of_the_list_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as blocker:
        taken = blocker.getsockname()[1]
        with listen("127.0.0.1", f"{taken},0", "test server") as found:
            assert found.getsockname()[1] not in (0, taken)
        # After a taken first port the others of the range are tried. Any process may have taken the last one.
        if taken < 65_000:
            with listen("127.0.0.1", f"{taken}-{taken + 500}", "test server") as found:
                assert taken < found.getsockname()[1] <= taken + 500
        with pytest.raises(ConfigError, match=f"no free port for the test server.*'{taken}'"):
            listen("127.0.0.1", f"{taken}", "test server")


def test_address_of_another_host_is_refused_by_name() -> None:
    for bind in ("192.0.2.1", "host.invalid"):
        with pytest.raises(ConfigError, match=bind):
            listen(bind, "0-5", "test server")
