"""Completion of command lines, for bash, zsh, fish and the shell of qstate: one engine for all."""
