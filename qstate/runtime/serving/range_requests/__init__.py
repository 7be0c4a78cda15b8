"""Requests about ranges of key groups: the pages of scans, and the polls of subscriptions."""
