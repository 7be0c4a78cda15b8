"""Stored state to read from: whole jobs and savepoints, checked, opened and restored."""
