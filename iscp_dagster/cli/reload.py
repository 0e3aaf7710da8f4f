"""Showing in a running Dagster what a command has changed."""

from __future__ import annotations


def show_in_dagster() -> None:
    """Ask the webserver that `iscp dev` runs, if any, to load tables and jobs anew.

    Says nothing and waits for nothing: the command is done whether or not somebody looks.
    """
    from iscp_dagster.orchestration.webserver import ask_for_reload
    from iscp_dagster.settings import Settings

    ask_for_reload(Settings.from_env())
