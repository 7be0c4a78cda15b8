"""Laws of capabilities: what a backend does not declare it does not do by half."""

from __future__ import annotations

import pytest

from qstate.backends import Capability, Isolation, Selection
from qstate.errors import UnsupportedOperation
from qstate_conformance.backend.instances import opened, sealed
from qstate_conformance.backend.states import VALUE
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject


@law("B7")
def test_an_operation_that_is_not_declared_is_refused(subject: BackendSubject) -> None:
    """Without COMMITTED_READS, asking for a committed reader raises `UnsupportedOperation`; with it, there is one."""
    with opened(subject) as backend:
        for epoch in range(2):
            if Capability.COMMITTED_READS in subject.capabilities:
                assert backend.reader(Isolation.COMMITTED).get(VALUE, None, []) == (epoch - 1, [])
            else:
                with pytest.raises(UnsupportedOperation):
                    backend.reader(Isolation.COMMITTED)
            sealed(backend, epoch)
            backend.begin(epoch + 1)


@law("B7")
def test_scans_that_are_not_declared_are_refused(subject: BackendSubject) -> None:
    """Without SCANS, asking for a scan raises `UnsupportedOperation`; with it, there is one, of a new state too."""
    with opened(subject) as backend:
        reader = backend.reader(Isolation.LIVE)
        if Capability.SCANS in subject.capabilities:
            scan = reader.scan(VALUE)
            assert list(scan.entries(0, None, Selection())) == []
            scan.close()
        else:
            with pytest.raises(UnsupportedOperation):
                reader.scan(VALUE)


@law("B7")
def test_live_reads_need_no_capability(subject: BackendSubject) -> None:
    """Every backend has a live reader, from the start."""
    with opened(subject) as backend:
        assert list(backend.reader(Isolation.LIVE).get(VALUE, None, ["k"]).values) == [None]


@law("B7")
def test_capabilities_are_declared_on_the_class(subject: BackendSubject) -> None:
    """The declaration is a frozenset of `Capability` on the class, and an instance has no other."""
    assert isinstance(subject.backend.capabilities, frozenset)
    assert all(isinstance(capability, Capability) for capability in subject.backend.capabilities)
    with opened(subject) as backend:
        assert backend.capabilities == subject.backend.capabilities
