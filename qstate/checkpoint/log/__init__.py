"""The epoch log of one operator subtask: its files, their history and what is made of them."""
