"""Requests about ranges: pages of scans and descriptions, the polls of subscriptions, the parts of a value."""
