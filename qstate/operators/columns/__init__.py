"""From Arrow columns to the rows, keys and values of a function, and back."""
