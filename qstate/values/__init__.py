"""The types of values, and the forms in which they are stored."""
