"""The log: which tables and jobs there are, how far each job is, and what every iteration did."""

from iscp_dagster.joblog.log import JobLog

__all__ = ["JobLog"]
