"""The plan that Spark runs for an operator: its columns, its shuffle, its ticks and its relay tasks."""
