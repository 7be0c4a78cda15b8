"""What a process of qstate asks of the host that it runs on: files, disks, ports, forks and log lines.

Rules of this package: the operating system and the standard library; it knows no state, no message and no job.
"""
