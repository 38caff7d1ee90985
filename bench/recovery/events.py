"""Reads what the ranks of one trial wrote, and refuses whatever is not a whole trial.

A rank that never stepped again, a second start of an attempt or a line too few would all
make a figure look better than it is; so nothing is measured from a trial that lacks
anything.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

WORLD_SIZE = 4
ATTEMPTS = (0, 1, 2)
KILLED = (0, 1)  # the attempts in which rank 1 dies


class BadTrialError(Exception):
    """The events are not those of a whole trial."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Times of one trial, in seconds of CLOCK_MONOTONIC."""

    first: tuple[float, ...]  # of each attempt: when its last rank was past its first step
    kill: tuple[float, ...]  # of each killed attempt
    threads: int  # torch's, in each rank
    imported: float  # median seconds of a rank's imports
    joined: float  # median seconds of init_process_group

    def submit_to_first(self, begin: float) -> float:
        """From the exec of the command to the last rank's first step."""
        return self.first[0] - begin

    def kill_to_first(self) -> list[float]:
        """From each kill to the next attempt's last first step."""
        return [self.first[a + 1] - self.kill[a] for a in KILLED]


def read(path: Path) -> Trial:
    """The trial in a file of events."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise BadTrialError("no rank wrote anything") from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as e:
            raise BadTrialError(f"line {number} is no JSON: {line[:80]!r}") from e
    extra = sorted({r["attempt"] for r in rows} - set(ATTEMPTS))
    if extra:
        raise BadTrialError(f"attempts that should not be: {extra}")
    every = list(range(WORLD_SIZE))
    first: list[float] = []
    for attempt in ATTEMPTS:
        _exactly(rows, "up", attempt, every)
        first.append(max(_exactly(rows, "first_step", attempt, every)))
    kill = [_exactly(rows, "kill", attempt, [1])[0] for attempt in KILLED]
    _exactly(rows, "kill", ATTEMPTS[-1], [])
    for attempt in ATTEMPTS:
        _exactly(rows, "done", attempt, [] if attempt in KILLED else every)
    for attempt in KILLED:
        if not first[attempt] < kill[attempt] < first[attempt + 1]:
            raise BadTrialError(f"the kill of attempt {attempt} does not lie between first steps")
    ups = [r for r in rows if r["event"] == "up"]
    for name in ("world", "threads"):
        if len({r[name] for r in ups}) != 1:
            raise BadTrialError(f"ranks differ in {name}: {sorted({r[name] for r in ups})}")
    if ups[0]["world"] != WORLD_SIZE:
        raise BadTrialError(f"a world of {ups[0]['world']}, want {WORLD_SIZE}")
    return Trial(
        first=tuple(first),
        kill=tuple(kill),
        threads=ups[0]["threads"],
        imported=sorted(r["import_s"] for r in ups)[len(ups) // 2],
        joined=sorted(r["join_s"] for r in ups)[len(ups) // 2],
    )


def _exactly(rows: list[dict[str, Any]], event: str, attempt: int, ranks: list[int]) -> list[float]:
    """The times of an event in an attempt, which must come once from each of these ranks."""
    found = [r for r in rows if r["event"] == event and r["attempt"] == attempt]
    if collections.Counter(r["rank"] for r in found) != collections.Counter(ranks):
        got = sorted(r["rank"] for r in found)
        raise BadTrialError(f"{event} of attempt {attempt}: want one of each of ranks {ranks}, got {got}")
    return [r["t"] for r in found]
