"""Ray Train as the second peer: the same ranks and kills, in an environment of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import events
import measure

HERE = Path(__file__).resolve().parent
TRIAL_LIMIT = 300.0  # seconds; a trial takes about 60 on two cores


def python() -> str:
    """The interpreter of an environment with Ray, which is made when it is not there."""
    done = subprocess.run(
        [
            str(measure.ROOT / "test" / "scripts" / "python-env.sh"),
            "with",
            str(HERE / "requirements-ray.txt"),
        ],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise measure.BenchError("the environment of Ray could not be made; --no-ray leaves it out")
    return done.stdout.strip()


def trial(interpreter: str, folder: Path) -> tuple[float, events.Trial]:
    """One run under Ray Train: the moment of its submit, and its times."""
    folder.mkdir()
    env = measure.plain_env() | {"TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "log").open("wb") as log:
        p = subprocess.Popen(
            [interpreter, str(HERE / "train_ray.py"), str(folder)],
            env=env,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
        )
        deadline = time.monotonic() + TRIAL_LIMIT
        try:
            code = p.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _bad(folder, f"not at its end after {TRIAL_LIMIT:.0f} s") from None
        finally:
            p.kill()
            p.wait()
            measure.end_all(str(folder))
    if code != 0:
        raise _bad(folder, f"ended with {code}")
    try:
        return float((folder / "begin").read_text()), events.read(folder / "events.jsonl")
    except (OSError, ValueError, events.BadTrialError) as e:
        raise _bad(folder, str(e)) from e


def _bad(folder: Path, what: str) -> events.BadTrialError:
    return events.BadTrialError(f"{what}; it said: {measure.tail(folder / 'log').strip() or 'nothing'}")
