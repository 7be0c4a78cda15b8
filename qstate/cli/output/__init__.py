"""What commands print: tables and formats, safe for terminals, and the progress of long work."""
