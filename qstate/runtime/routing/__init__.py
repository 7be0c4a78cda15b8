"""Where key groups are, and the way of one get over their owners."""
