"""Delta's JVM classes for a local session.

They come in the jar of the `jsoniq` package, so that nothing is downloaded at run time. That jar
lost the line that makes `format("delta")` known to Spark; a *service jar* of ours with that one
line goes beside it.
"""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from pathlib import Path

from iscp_dagster.errors import DeltaJarsMissing
from iscp_dagster.spark.files import write_atomically

_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_DELTA_SOURCE = "org.apache.spark.sql.delta.sources.DeltaDataSource\n"


def delta_jars(home: Path) -> list[Path]:
    """Find Delta's jar and write the service jar.

    Args:
        home: The settings' home; the service jar is kept in it.

    Returns:
        The jars Spark needs beside its own; none where the installed Spark has Delta itself.

    Raises:
        DeltaJarsMissing: There is no Delta to be found.
    """
    if any((spark_home() / "jars").glob("delta-spark_*.jar")):
        return []
    return [_service_jar(home), _bundled_jar()]


def spark_home() -> Path:
    """The folder of the Spark that pyspark starts: `SPARK_HOME`, else pyspark itself."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    return _package_folder("pyspark") or Path("pyspark")


def _bundled_jar() -> Path:
    folder = _package_folder("jsoniq")
    if folder is None:
        raise DeltaJarsMissing("the package jsoniq, which holds Delta's classes, is not installed")
    jars = sorted((folder / "jars").glob("rumbledb-*.jar"))
    if not jars:
        raise DeltaJarsMissing(f"no Delta jar in {folder / 'jars'}")
    return jars[-1]


def _service_jar(home: Path) -> Path:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as jar:
        # A fixed date keeps the bytes the same, so that a second start finds nothing to write.
        jar.writestr(zipfile.ZipInfo(_SERVICE, (1980, 1, 1, 0, 0, 0)), _DELTA_SOURCE)
    path = home / "spark" / "delta-service.jar"
    write_atomically(path, content.getvalue())
    return path


def _package_folder(name: str) -> Path | None:
    # Without importing it: jsoniq's own import starts a good part of Spark.
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
