"""Does a client keep the protocol? The suite starts the client's program, drives it, and plays the server to it."""
