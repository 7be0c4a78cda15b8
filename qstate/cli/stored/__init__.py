"""The commands that read stored state: checkpoint directories and savepoints."""
