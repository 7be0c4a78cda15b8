"""Operators: functions, state handles and the loop that calls them. No sockets, no Spark."""
