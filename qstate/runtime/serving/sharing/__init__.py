"""What requests and connections share, and how: turns, memory, the size of a step."""
