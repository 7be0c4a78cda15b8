"""The heap backend: live Python objects in dicts, copy-free."""
