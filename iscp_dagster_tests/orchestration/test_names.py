"""Tests of the names that tables and jobs have in Dagster."""

from __future__ import annotations

import itertools
import re

import pytest

from iscp_dagster.orchestration.names import (
    group_name,
    kind_name,
    observe_name,
    op_name,
    output_name,
    partitions_name,
)
from iscp_dagster.rules.model import TableKey

ALIKE = ["a", "b", "a_b", "a-b", "a__b", "a-_b", "_", "__", "b_a", "a_b_a", "0", "A"]
TABLES = [TableKey(*parts) for parts in itertools.product(ALIKE, repeat=3)]


def test_partitions_are_named_after_the_table() -> None:
    assert partitions_name(TableKey("sys", "shop", "items")) == "iscp/sys/shop/items"


def test_plain_names_are_readable() -> None:
    table = TableKey("sys", "shop", "items")
    assert op_name(table) == "iscp_sys_shop_items"
    assert group_name(table) == "sys_shop"
    assert output_name(table.job("copy")) == "iscp_copy"


def test_no_two_tables_share_an_op() -> None:
    names = [name(table) for table in TABLES for name in (op_name, observe_name)]
    assert len(set(names)) == 2 * len(TABLES)


def test_no_two_jobs_of_a_table_share_an_output() -> None:
    table = TableKey("sys", "shop", "items")
    assert len({output_name(table.job(name)) for name in ALIKE}) == len(ALIKE)


def test_names_are_what_dagster_allows() -> None:
    for table in TABLES:
        names = (op_name(table), observe_name(table), group_name(table))
        for name in (*names, output_name(table.job("a-b"))):
            assert re.fullmatch(r"[A-Za-z0-9_]+", name)


def test_a_name_is_the_same_in_every_process() -> None:
    assert op_name(TableKey("sys", "shop", "it-ems")) == "iscp_sys_shop_it_ems_3d7017"


@pytest.mark.parametrize(
    ("type_name", "kind"),
    [("mirror", "mirror"), ("my plug/in", "my_plug_in"), ("", "_"), ("x" * 99, "x" * 63)],
)
def test_any_type_gives_a_kind(type_name: str, kind: str) -> None:
    assert kind_name(type_name) == kind
