"""Delta's jars: found, completed, missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from iscp_dagster.errors import DeltaJarsMissing
from iscp_dagster.spark import jars as jars_module
from iscp_dagster.spark.jars import delta_jars


def test_the_jars_hold_deltas_classes_and_make_the_format_known(tmp_path: Path) -> None:
    held: set[str] = set()
    registered = ""
    for jar in delta_jars(tmp_path):
        with zipfile.ZipFile(jar) as content:
            held.update(content.namelist())
            service = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
            registered += content.read(service).decode()
    assert "io/delta/sql/DeltaSparkSessionExtension.class" in held
    assert "org/apache/spark/sql/delta/sources/DeltaDataSource.class" in held
    assert "org.apache.spark.sql.delta.sources.DeltaDataSource" in registered.split()


def test_the_service_jar_is_written_once_and_repaired_when_broken(tmp_path: Path) -> None:
    service = next(jar for jar in delta_jars(tmp_path) if jar.is_relative_to(tmp_path))
    whole, written = service.read_bytes(), service.stat().st_mtime_ns
    delta_jars(tmp_path)
    assert service.stat().st_mtime_ns == written
    service.write_bytes(whole[:20])
    delta_jars(tmp_path)
    assert service.read_bytes() == whole
    assert [path.name for path in service.parent.iterdir()] == [service.name]


def test_a_spark_with_its_own_delta_needs_no_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "delta-spark_2.13-4.0.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert delta_jars(tmp_path / "home") == []


def test_a_missing_jar_is_one_line_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = jars_module._package_folder
    monkeypatch.setattr(
        jars_module, "_package_folder", lambda name: None if name == "jsoniq" else found(name)
    )
    with pytest.raises(DeltaJarsMissing) as caught:
        delta_jars(tmp_path)
    assert "jsoniq" in str(caught.value)
    assert "ISCP_SPARK_PACKAGES" in str(caught.value)
    assert "\n" not in str(caught.value)
