"""The standby: committed state served from a checkpoint directory, without the job."""
