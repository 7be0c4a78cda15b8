"""The query port: state server and client proxy, and what both listen with."""
