"""Benchmarks: qstate beside what people use instead, on the same machine, in the same run, with the same work.

`tox -e bench` runs all of them; `docs/explanation/performance.md` says what each measures and how to read it.
Not part of the distribution.
"""
