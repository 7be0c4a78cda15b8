"""Who may ask for what on the query port: `rights`, the `access_file` that grants them, and the `gate` of a port."""
