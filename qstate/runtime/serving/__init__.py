"""The query port: the state server, the client proxy, and the endpoint that both listen with."""
