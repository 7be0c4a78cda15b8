"""The command `qstate shell`: a prompt at which commands are typed."""
