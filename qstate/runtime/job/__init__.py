"""The driver's side: the job manager, the checkpoint directory and its owner."""
