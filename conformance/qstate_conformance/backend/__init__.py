"""The laws of state backends; each cites a MUST of `qstate.backends.contract` or of `qstate.backends.ByteStore`.

Rules of this package: it knows the contract, keys, descriptors and serializers, and no backend's insides. `model`
computes what a backend should hold, `replica` what a change means; neither shares code with a backend.
"""
