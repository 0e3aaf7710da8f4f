"""both killed"""
import os, signal, time, sys
import pytest
from iscp_dagster_tests.orchestration.test_end_to_end import *
from iscp_dagster_tests.orchestration.test_end_to_end import _read_stat
from iscp_dagster_tests.orchestration.conftest import home, house
def test_both(house, daemon):
    house.table("stuck"); house.register("stuck", "slow")
    d = daemon("hang@before_apply:slow")
    run, pid = d.hanging("slow", attempt=0)
    _, server = _read_stat(Path(f"/proc/{pid}/stat"))
    print(Path(f"/proc/{server}/cmdline").read_bytes().replace(b"\0", b" "))
    os.kill(server, 9); os.kill(pid, 9); t = time.monotonic()
    d.until(lambda: d.status(run) is DagsterRunStatus.FAILURE, "failed"); print("failed", time.monotonic()-t)
    d.until(lambda: house.job("stuck","slow").attempt == 1, "attempt"); print("attempt", time.monotonic()-t)
    d.until(lambda: d.runs("slow")[0].run_id != run.run_id, "again"); print("again", time.monotonic()-t)
    print(d.said())
