"""Storage of checkpoint files: a disk or an object store. It knows no contents."""
