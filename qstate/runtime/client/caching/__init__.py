"""The look-aside cache of a client: committed values of keys, kept right by the changes of their state."""
