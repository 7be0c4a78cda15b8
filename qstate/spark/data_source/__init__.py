"""State as a DataFrame: Spark's data source `qstate`, over running jobs, checkpoint directories and savepoints."""
