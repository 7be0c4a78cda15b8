"""Laws of servers: what a client proxy and its state servers must do on the query port.

Rules of this package: a law knows the protocol reference and the fixture, nothing else. This package
builds messages and judges answers with its own code, written from the reference, so that the suite shares no mistake
with qstate's protocol code. Only `loading` and `reference_server`, which are a server, use qstate's runtime.
"""
