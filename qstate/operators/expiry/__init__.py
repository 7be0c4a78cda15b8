"""State with a time-to-live, as a function sees it, and the removal of what has expired."""
