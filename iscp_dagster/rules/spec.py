"""What a user asks for when registering a job: consumer, trigger and limits.

The consumer part (`type`, `columns`, `options`) is fixed at creation, per generation; the rest may
be altered. A *patch* is a spec with only the fields that change; empty fields keep their value.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from iscp_dagster.errors import UsageError

_DURATION = re.compile(r"(?P<count>[1-9]\d{0,8})(?P<unit>ms|s|m|h|d)", re.ASCII)
# What Dagster takes for an owner of an asset.
_OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: object) -> object:
    """Turn `30s`, `5m`, `2h` or `1d` into a timedelta; leave what is none to pydantic."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        return timedelta(seconds=int(found["count"]) * _UNITS[found["unit"]])
    raise ValueError(f"{value!r} is no duration, write one like 30s, 5m, 2h or 1d")


def format_duration(value: timedelta) -> str:
    """Write a duration so that `parse_duration` reads it back."""
    milliseconds = round(value.total_seconds() * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def _check_owner(value: str) -> str:
    if not _OWNER.fullmatch(value):
        raise ValueError(f"{value!r} is no owner, write an email address or team:NAME")
    return value


Owner = Annotated[str, AfterValidator(_check_owner)]
Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]


class TriggerSpec(BaseModel):
    """When a job's next iteration starts, and with whom."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = "default"
    interval: Duration | None = None
    share: bool = False
    """Periodic only: join a window that others on the table get in the same tick."""
    independent: bool = False
    """Never wait for, and never travel with, the other jobs of the table."""

    @model_validator(mode="after")
    def _interval_belongs_to_periodic(self) -> TriggerSpec:
        if self.kind == "periodic" and self.interval is None:
            raise ValueError("interval: a periodic trigger needs one, write --interval 30s")
        if self.kind in ("default", "greedy") and self.interval is not None:
            raise ValueError(f"interval: a {self.kind} trigger takes none")
        return self


class JobSpec(BaseModel):
    """One job: what it builds, when it runs, and how much it may take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str
    columns: tuple[str, ...] = ()
    """The columns to index; empty for the consumer's default."""
    options: dict[str, str] = Field(default_factory=dict)
    """The consumer's own options, validated by the consumer."""
    trigger: TriggerSpec = TriggerSpec()
    priority: int = Field(default=0, ge=-100, le=100)
    max_window_versions: int = Field(default=10_000, ge=1)
    max_window_bytes: int = Field(default=64 * 2**30, ge=1)
    timeout: Duration = timedelta(hours=1)
    """How long one consumer may take for one window."""
    lag_target: Duration = timedelta(minutes=15)
    """The lag above which the job's lag check goes red."""
    description: str = ""
    owners: tuple[Owner, ...] = ()
    """Email addresses, or `team:NAME`; shown with the asset."""


BUILD_FIELDS = ("type", "columns", "options")


def parse_spec(values: dict[str, Any]) -> JobSpec:
    """Validate a spec; a wrong field is named in one line."""
    try:
        return JobSpec.model_validate(values)
    except ValidationError as error:
        raise UsageError(_first_problem(error)) from error


def merge_spec(current: JobSpec, patch: dict[str, Any]) -> JobSpec:
    """Return `current` with the fields of `patch` laid over it; empty fields keep their value.

    A field is empty when it is missing, None, or an empty string, list or mapping. The trigger
    merges field by field, unless its kind changes: then what belonged to the old kind goes.
    """
    given = {name: value for name, value in patch.items() if not _empty(value)}
    for name in BUILD_FIELDS:
        if name in given and parse_spec({"type": current.type, name: given[name]}) != (
            parse_spec({"type": current.type, name: getattr(current, name)})
        ):
            raise UsageError(
                f"{name}: fixed when the job was created",
                cure="unregister the job and register it with the new value",
            )
    merged = current.model_dump()
    trigger = given.pop("trigger", None)
    if trigger is not None:
        fields = trigger if isinstance(trigger, dict) else dict(trigger)
        fields = {name: value for name, value in fields.items() if not _empty(value)}
        old = merged["trigger"]
        if fields.get("kind", old["kind"]) != old["kind"]:
            old = {"independent": old["independent"]}
        merged["trigger"] = {**old, **fields}
    merged.update(given)
    return parse_spec(merged)


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, str | tuple | list | dict) and len(value) == 0)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    what = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
