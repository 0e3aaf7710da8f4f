"""Ask an index: full-text, vector, lookup and aggregate, without Spark."""

from iscp_dagster.search.result import SearchResult
from iscp_dagster.search.run import search

__all__ = ["SearchResult", "search"]
