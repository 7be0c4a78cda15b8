"""What the clients give: futures, scans, subscriptions, and handles of a state."""
