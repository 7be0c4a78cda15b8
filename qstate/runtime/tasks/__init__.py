"""The task manager process and the subtasks in it."""
