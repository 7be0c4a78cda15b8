"""The time of an operator: of its epochs, of its rows, and the timers that wait for it."""
