"""Laws of servers: what a client proxy and its state servers must do on the query port, whoever wrote them.

Rules of this package: a law knows the protocol reference and the fixture, nothing else. What it sends and how it
judges answers is written anew here, from the reference, so that the suite shares no mistake with qstate's own
protocol code. Only `loading` and `reference_server`, which are a server, use qstate's runtime.
"""
