"""Requests about ranges: the pages of scans, the polls of subscriptions, and the parts of a value."""
