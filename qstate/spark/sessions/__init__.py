"""What a job needs of the session that it is given, of both kinds of PySpark: classic, and Spark Connect."""
