"""A claim asks an index where it stands before there is a Spark session: Lance comes first then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iscp_dagster_tests.stores.lance_history import apply, create

CODE = """
import sys
from pathlib import Path
from iscp_dagster.spark.session import get_spark
from iscp_dagster.stores.lance_index import LanceIndex
from iscp_dagster_tests.conftest import settings_in
from iscp_dagster_tests.stores.lance_history import apply

def rows(batches):
    import lance
    yield from batches

index = LanceIndex(sys.argv[1], 7)
assert index.standing().watermark.version == 3
spark = get_spark(settings_in(Path(sys.argv[2]), ISCP_SPARK_MEMORY="512m"), "late")
assert spark.range(10).mapInArrow(rows, "id bigint").count() == 10
assert apply(index, 5).watermark.version == 5
spark.stop()
"""


def test_a_first_sync_asks_without_loading_lance(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from iscp_dagster.stores.lance_index import LanceIndex\n"
        "assert LanceIndex(sys.argv[1], 7).standing() is None\n"
        "sys.exit('lance' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "none")], check=False)
    assert done.returncode == 0


@pytest.mark.spark
def test_spark_starts_and_works_after_lance_was_used(tmp_path: Path) -> None:
    index = create(tmp_path / "index")
    apply(index, 3)
    done = subprocess.run(
        [sys.executable, "-c", CODE, index.uri, str(tmp_path / "home")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
