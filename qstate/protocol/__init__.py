"""The wire protocol of the query port: messages, frames and connections, without I/O.

Rules of this package: bytes in, events out. No sockets, no threads, no clock. docs/reference/protocol.md is
the specification.
"""
