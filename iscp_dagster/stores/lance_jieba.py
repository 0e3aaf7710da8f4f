"""The `jieba` tokenizer's dictionary, from the Python package of that name.

Lance looks for dictionaries in one folder of the machine, named by an environment variable, and
asks its user to download them there. Here the folder holds one line that points to the dictionary
of the installed package.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from iscp_dagster.errors import UsageError

TOKENIZER = "jieba/default"
_HOME = "LANCE_LANGUAGE_MODEL_HOME"


def check_jieba() -> Path:
    """Return the dictionary's path; without the package, say how to get it."""
    found = find_spec("jieba")
    if found is None or found.origin is None:
        raise UsageError(
            "tokenizer: jieba is not installed", cure="pip install 'iscp_dagster[jieba]'"
        )
    return Path(found.origin).with_name("dict.txt")


def ready_jieba() -> None:
    """Let Lance find the dictionary in this process; a folder the user has set up is respected."""
    if os.environ.get(_HOME):
        return
    dictionary = check_jieba()
    home = Path(tempfile.gettempdir()) / f"iscp-language-models-{os.getuid()}"
    folder = home / TOKENIZER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = folder / f"config.{os.getpid()}"
    fresh.write_text(json.dumps({"main": str(dictionary)}))
    fresh.replace(folder / "config.json")
    os.environ[_HOME] = str(home)
