"""The command `qstate`, one module a command."""
