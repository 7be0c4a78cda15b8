"""The laws of state backends; each cites a MUST of `qstate.backends.contract` or of `qstate.backends.ByteStore`.

Rules of this package: it knows the contract, keys, descriptors and serializers, and no backend's insides. What a
backend should hold is told by `model`, what a change means by `replica`; neither shares code with a backend.
"""
