"""The location of key groups, and the routing of one get to their owners."""
