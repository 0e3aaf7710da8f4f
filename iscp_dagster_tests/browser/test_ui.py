"""What a person sees in Dagster's UI after the demo, looked at in a real browser.

Pictures of the pages are kept in the test's folder; with `ISCP_SCREENSHOTS=docs/images` those that
the README shows go there, made from all of the demo's rows.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iscp_dagster.demo.library import JOBS
from iscp_dagster_tests.browser.conftest import FOR_README, ROOT
from iscp_dagster_tests.browser.dagster_dev import DagsterDev
from iscp_dagster_tests.orchestration.webserver import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.timeout(300)]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TABLE = "sys/demo/stdlib"
IN_README = ("lineage", "sensor")
Picture = Callable[[str], None]
WAIT_MILLISECONDS = 30_000


@pytest.fixture(scope="module")
def page(dagster_dev: DagsterDev) -> Iterator[Page]:
    """A page of a headless Chromium, which must not meet an error in any script."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        at = f"http://127.0.0.1:{dagster_dev.port}"
        page = browser.new_page(viewport={"width": 1500, "height": 1020}, base_url=at)
        page.set_default_timeout(WAIT_MILLISECONDS)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        browser.close()
    assert errors == []


@pytest.fixture
def picture(page: Page, tmp_path: Path) -> Picture:
    """Takes a picture of what the page shows."""
    asked_for = os.environ.get("ISCP_SCREENSHOTS")

    def take(name: str) -> None:
        folder = ROOT / asked_for if asked_for and name in IN_README else tmp_path
        page.screenshot(path=folder / f"{name}.png", animations="disabled")

    return take


def see(page: Page, *texts: str | re.Pattern[str]) -> None:
    """Wait until every text can be seen."""
    for text in texts:
        page.get_by_text(text).locator("visible=true").first.wait_for()


def test_plain_dagster_dev_sees_what_the_demo_left(dagster_dev: DagsterDev) -> None:
    assert dagster_dev.last_skip_reason() == "1 table: 1 unchanged"


def test_the_lineage_leads_from_the_table_to_its_indexes(page: Page, picture: Picture) -> None:
    page.goto("/asset-groups")
    see(page, re.compile("^stdlib$"), *(re.compile(f"^{name}$") for name in JOBS))
    see(page, *(spec["type"] for spec in JOBS.values()), "delta", "lance")
    see(page, "3 / 3 Passed")
    assert page.get_by_text("Failed").count() == 0
    assert page.get_by_text("Never observed").count() == 0
    picture("lineage")


def test_an_index_s_page_tells_what_it_is_and_how_it_does(page: Page, picture: Picture) -> None:
    page.goto(f"/assets/{TABLE}/by_module?view=overview")
    see(page, JOBS["by_module"]["description"], "sys_demo", "Row count", "signature")
    see(page, "default: after each change, in one scan with the table's other jobs.")
    picture("asset")
    page.get_by_text("Plots").first.click()
    see(page, "iscp/lag_seconds", "iscp/rows_upserted", "iscp/consumer_seconds")
    page.goto(f"/assets/{TABLE}/words?view=overview")
    see(page, JOBS["words"]["description"], "fulltext", "lance", "Row count")
    picture("words")


def test_checks_are_green_with_their_reason(page: Page, picture: Picture) -> None:
    page.goto(f"/assets/{TABLE}/by_module?view=checks&checkDetail=rows")
    see(page, "Checks (3)", "iscp/rows_expected", "iscp/rows_found")
    assert page.get_by_text("Not Evaluated").count() == 0
    picture("checks")


def test_the_sensor_s_tick_reads_like_a_sentence(page: Page, picture: Picture) -> None:
    page.goto(f"/locations/{REPOSITORY['repositoryLocationName']}/sensors/iscp_runner")
    see(page, "Starts iterations for the jobs that are due, and explains each tick.")
    assert page.get_by_role("switch").or_(page.get_by_role("checkbox")).first.is_checked()
    tick = page.get_by_role("row").filter(has_text=re.compile(r"\b1 run requested"))
    found = tick if FOR_README else page
    found.get_by_role("button", name="View logs").last.click()
    see(page, re.compile(r"^1 table: 1 (unchanged|starting)$"))
    picture("sensor")
    page.get_by_role("button", name="Done").click()


def test_runs_are_found_by_account_table_job_and_window(page: Page, picture: Picture) -> None:
    page.goto(f"/runs?q[0]=tag%3Aiscp%2Ftable%3D{TABLE.replace('/', '%2F')}")
    see(page, "Success", f"iscp/table: {TABLE}", "iscp/account: sys", "per_module")
    see(page, re.compile(r"^iscp/jobs: "), re.compile(r"^iscp/window: "))
    picture("runs")
    page.goto("/runs?q[0]=tag%3Aiscp.job%2Fwords%3Dyes&q[1]=tag%3Aiscp%2Faccount%3Dsys")
    see(page, "iscp.job/words: yes")
    assert page.get_by_text('iscp/jobs: ["per_module"]').count() == 0
    page.goto("/runs?q[0]=tag%3Aiscp%2Faccount%3Dnobody")
    see(page, "No matching runs")
