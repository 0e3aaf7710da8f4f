"""What registration refuses, without Spark."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from iscp_dagster.consumers.base import split_names
from iscp_dagster.consumers.registry import get_consumer_class
from iscp_dagster.errors import UsageError
from iscp_dagster.rules.spec import JobSpec


@dataclass(frozen=True)
class Column:
    name: str
    type: str


@dataclass(frozen=True)
class Facts:
    columns: tuple[Column, ...]


FACTS = Facts(
    (
        Column("id", "bigint"),
        Column("section", "string"),
        Column("price", "decimal(12,2)"),
        Column("tags", "array<string>"),
        Column("a,b", "int"),
        Column("_iscp_x", "int"),
        Column("count", "string"),
    )
)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (JobSpec(type="mirror", columns=("nope",)), "columns: no column 'nope'"),
        (JobSpec(type="mirror", columns=("id", "ID")), "columns: 'id' is named twice"),
        (JobSpec(type="mirror", columns=("_iscp_x",)), "columns: '_iscp_x' is a reserved name"),
        (JobSpec(type="mirror", columns=("id",), options={"by": "id"}), "options: mirror has no"),
        (JobSpec(type="mirror", columns=("id",), options={"where": "x = 1"}), "where: x"),
        (JobSpec(type="lookup", columns=("id",)), "by: lookup needs it"),
        (JobSpec(type="lookup", columns=("id",), options={"by": "tags"}), "by: 'tags' is array"),
        (JobSpec(type="lookup", columns=("id",), options={"by": "nope"}), "by: no column"),
        (JobSpec(type="aggregate"), "group_by: aggregate needs it"),
        (JobSpec(type="aggregate", options={"group_by": "nope"}), "group_by: no column"),
        (
            JobSpec(type="aggregate", columns=("id",), options={"group_by": "id"}),
            "columns: an aggregate takes none",
        ),
    ],
)
def test_a_spec_that_does_not_fit_the_table_is_refused_by_field(spec: JobSpec, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        get_consumer_class(spec.type).check_spec(spec, FACTS)
    assert refused.value.message.startswith(field)


@pytest.mark.parametrize(
    ("measures", "says"),
    [
        ("count_distinct:id", "can't be kept up to date"),
        ("median:id", "is unknown"),
        ("sum", "sum needs a column"),
        ("sum:section", "sum needs a number"),
        ("min:tags", "no order"),
        ("sum:nope", "no column 'nope'"),
        ("sum:price,sum:price", "two columns would be called"),
        ("count,", "is not a list"),
    ],
)
def test_a_measure_that_can_not_be_kept_is_refused(measures: str, says: str) -> None:
    spec = JobSpec(type="aggregate", options={"group_by": "section", "measures": measures})
    with pytest.raises(UsageError, match=says) as refused:
        get_consumer_class("aggregate").check_spec(spec, FACTS)
    assert refused.value.message.startswith("measures: ")


def test_a_measure_may_not_take_the_name_of_a_group() -> None:
    spec = JobSpec(type="aggregate", options={"group_by": "count", "measures": "count"})
    with pytest.raises(UsageError, match="two columns would be called 'count'"):
        get_consumer_class("aggregate").check_spec(spec, FACTS)


@pytest.mark.parametrize(
    ("spec", "columns"),
    [
        (JobSpec(type="mirror", columns=("price",)), ("id", "price")),
        (
            JobSpec(type="mirror", columns=("id",), options={"where": "Section = 'x'"}),
            ("id", "section"),
        ),
        (
            JobSpec(type="lookup", columns=("price",), options={"by": "section,`a,b`"}),
            ("id", "section", "a,b", "price"),
        ),
        (
            JobSpec(
                type="aggregate",
                options={"group_by": "section", "measures": "count,sum:price", "where": "id > 1"},
            ),
            ("section", "price", "id"),
        ),
    ],
)
def test_only_the_columns_that_an_index_needs_are_read(
    spec: JobSpec, columns: tuple[str, ...]
) -> None:
    assert get_consumer_class(spec.type).source_columns(spec, ("id",), FACTS) == columns


def test_names_may_be_quoted() -> None:
    assert split_names("by", "a, `b,c`,`d``e`") == ("a", "b,c", "d`e")


def test_consumers_are_importable_without_spark() -> None:
    code = (
        "import sys\n"
        "from iscp_dagster.consumers.registry import consumer_types, get_consumer_class\n"
        "for name in consumer_types(): get_consumer_class(name)\n"
        "sys.exit(bool({'pyspark', 'deltalake', 'pyarrow', 'dagster'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
