"""Tests of the errors' codes and of what they print."""

from __future__ import annotations

import inspect
import pickle
from collections import Counter

import pytest

from iscp_dagster import errors
from iscp_dagster.errors import (
    PERMANENT_FROM,
    ClaimLost,
    IscpError,
    LogSchemaTooNew,
    LogUnavailable,
    PermanentError,
    TemporaryError,
    UnknownJob,
    UsageError,
)

BASES = (IscpError, TemporaryError, PermanentError)
ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, IscpError)
]
NAMED = [error for error in ALL if error not in BASES]


def test_no_two_errors_share_a_code() -> None:
    codes = Counter(error.code for error in NAMED)
    assert {code: n for code, n in codes.items() if n > 1} == {}
    assert not {base.code for base in BASES} & codes.keys()


@pytest.mark.parametrize("error", NAMED)
def test_every_error_says_its_own_code_and_is_either_temporary_or_permanent(
    error: type[IscpError],
) -> None:
    assert "code" in vars(error)
    if issubclass(error, TemporaryError):
        assert 1 <= error.code < PERMANENT_FROM
    else:
        assert issubclass(error, PermanentError | UsageError)
        assert error.code >= PERMANENT_FROM
    assert not (issubclass(error, TemporaryError) and issubclass(error, PermanentError))


def test_a_retry_helps_where_the_code_is_below_10_000() -> None:
    assert not LogUnavailable("away").permanent
    assert not ClaimLost("moved").permanent
    assert LogSchemaTooNew("too new").permanent
    assert UsageError("wrong").permanent


@pytest.mark.parametrize("error", ALL)
def test_a_cure_is_one_line_that_goes_behind_the_message(error: type[IscpError]) -> None:
    assert "\n" not in error.cure
    assert error.cure == error.cure.strip()
    assert not error.cure.endswith(".")
    assert (error.__doc__ or "").strip()


def test_an_error_prints_its_message_and_its_cure() -> None:
    assert str(UnknownJob("job sys/a/b/c is not in the log")) == (
        "job sys/a/b/c is not in the log; `iscp jobs` shows the jobs, `iscp register` adds one"
    )


def test_an_error_without_a_cure_prints_its_message_alone() -> None:
    assert str(UsageError("priority: 101 is too much")) == "priority: 101 is too much"


def test_a_cure_given_at_the_spot_replaces_the_usual_one_there_and_only_there() -> None:
    assert str(UnknownJob("no such job", cure="ask Ann")) == "no such job; ask Ann"
    assert "ask Ann" not in str(UnknownJob("no such job"))


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(LogUnavailable("away", cure="start it")))
    assert (type(error), str(error), error.code) == (LogUnavailable, "away; start it", 10)
