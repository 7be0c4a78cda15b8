"""Sockets and threads: reactors, reading pools, listeners. Knows no message."""
