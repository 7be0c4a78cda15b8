"""A real job whose query ports take TLS only, with two task managers and clients that have different rights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.client import ClientTls, QueryableStateClient
from qstate.errors import Forbidden, TlsFailed, Unauthenticated
from qstate.keys import key_group
from qstate.runtime.serving.access.rights import digest_of
from tests.certificates import Authority
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, RunningJob, rows_batch

RULES = """
[principals.reader]
tokens = ["{reader}"]
[[principals.reader.grants]]
rights = ["read"]
jobs = ["job"]
states = ["{state}"]

[principals.other]
tokens = ["{other}"]
[[principals.other.grants]]
rights = ["read"]
jobs = ["another job"]
states = ["*"]
"""


def test_a_job_over_tls_answers_by_the_rights_of_its_clients(job_of: Callable[..., RunningJob], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    rules = tmp_path / "access.toml"
    rules.write_text(RULES.format(reader=digest_of(b"reader"), other=digest_of(b"other"), state="totalAmount"))
    job = job_of(
        Totals(),
        parallelism=2,
        # Names that no address has: proxies and clients look for the name that they are given.
        tls_certificate_file=authority.issue("servers.example", common_name="servers"),
        tls_ca_file=authority.file,
        tls_server_name="servers.example",
        tls_client_ca_file=authority.file,
        access_file=str(rules),
        audit_log=True,
    )
    keys = [f"key {number}" for number in range(20)]
    for subtask in range(2):
        mine = [key for key in keys if key_group(key, 128) * 2 // 128 == subtask]
        job.epoch(0, rows_batch(*((key, 7) for key in mine)), subtask=subtask)
    proxy = job.manager.task_managers()[0].proxy
    assert proxy is not None
    known = ClientTls(authority.file, authority.issue("reader"), server_name="servers.example")
    for direct in (False, True):
        with QueryableStateClient(*proxy, tls=known, token="reader", direct=direct) as client:
            found = client.get_many(JOB, "totalAmount", keys)
            assert {key: view.get() for key, view in found.items()} == dict.fromkeys(keys, 7)
            assert client.jobs() == [JOB]
    with QueryableStateClient(*proxy, tls=known, token="other") as client, pytest.raises(Forbidden):
        client.get(JOB, "totalAmount", keys[0])
    with QueryableStateClient(*proxy, tls=known) as client, pytest.raises(Unauthenticated):
        client.jobs()
    with QueryableStateClient(*proxy, token="reader") as client, pytest.raises(TlsFailed):
        client.jobs()
    job.stop()
    log = job.log_text()
    assert "permitted: principal='reader'" in log and "request='Get' job='job' state='totalAmount'" in log
    assert "refusal='FORBIDDEN'" in log and "refusal='UNAUTHENTICATED'" in log and "refusal='TLS_FAILED'" in log
    assert "principal='proxy'" not in log
