"""Inside one job: addresses of its processes, calls between them, authentication, and how they start."""
