"""What a client proxy forwards to the owners."""
