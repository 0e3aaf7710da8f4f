"""Consumers: the code that applies one window of changes to one index, one file per kind."""
