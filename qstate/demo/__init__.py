"""The demo: a year of flights and weather through Spark, queried live, and compared with a batch computation."""
