"""The gateway: the state of running jobs over HTTP, for browsers, `curl` and any language; see `qstate gateway`.

Rules of this package: it translates. It asks with the public asyncio client and with the token of its own caller, so
what a caller may see is decided where it always is, at the query port. It holds no right of its own.

    server --> app --> guards --> reads, streams --> upstream --> the asyncio client
                                  parameters         feeds, figures
                                  problems
"""
