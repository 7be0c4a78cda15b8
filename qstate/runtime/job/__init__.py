"""The driver's side: the job manager, the checkpoint directory and who owns it."""
