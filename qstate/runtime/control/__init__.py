"""Inside one job: addresses, calls between its processes, how they start and know each other."""
