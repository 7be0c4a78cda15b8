"""From a Spark task to its task manager and back."""
