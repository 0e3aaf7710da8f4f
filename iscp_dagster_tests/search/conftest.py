"""A library of indexes for tests of searches."""

from iscp_dagster_tests.search.library import library

__all__ = ["library"]
