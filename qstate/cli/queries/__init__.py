"""The commands that query a running job."""
