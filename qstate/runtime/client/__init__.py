"""The clients: operations, failover, and their transports."""
