"""Where files lie: a disk or an object store. Knows no contents."""
