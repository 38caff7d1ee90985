"""Ranks that make steps together, through files, and stand still in one way.

Each rank waits after every step until all others have made it: a collective without a
library. ``--how`` says what rank 1 does at step ``--at``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

import troupe


def wait_for_all(folder: Path, step: int, rank: int, world: int) -> None:
    """Return when every rank has come to the step."""
    (folder / f"{step}-{rank}").touch()
    while any(not (folder / f"{step}-{r}").exists() for r in range(world)):
        time.sleep(0.002)


def locked() -> None:
    """Wait for a lock that this thread holds."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stand(how: str) -> None:
    """Stand still."""
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "deadlock":
        locked()
    elif how == "slow":
        time.sleep(4)
    elif how == "phase":
        with troupe.phase("evaluate", timeout=60):
            time.sleep(6)
    elif how == "brief":
        time.sleep(5)


def main() -> None:
    """Make steps."""
    options = argparse.ArgumentParser()
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--how", required=True)
    options.add_argument("--at", type=int, default=120)
    options.add_argument("--steps", type=int, default=140)
    given = options.parse_args()
    ctx = troupe.init()
    folder = given.folder / str(ctx.attempt)
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, given.steps + 1):
        time.sleep(0.01)
        first = ctx.attempt == 0 or given.how in ("slow", "phase")
        if ctx.rank == 1 and step == given.at and first:
            stand(given.how)
        if ctx.rank == 1 and step > given.at and given.how == "slow" and step % 5 == 0:
            time.sleep(1.5)
        wait_for_all(folder, step, ctx.rank, ctx.world)
        troupe.step(step)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
