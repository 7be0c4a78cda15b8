"""A module for the tests of the framework that ends the process when it is imported, as a script would."""

raise SystemExit(1)
