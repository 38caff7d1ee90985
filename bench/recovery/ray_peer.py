"""Ray as the second peer, in an environment of its own: ranks and kills under Ray Train,
and an actor that loses its node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import events
import measure
import nodes

HERE = Path(__file__).resolve().parent
TRIAL_LIMIT = 300.0  # seconds; a trial takes about 60 on two cores
NODES_LIMIT = 600.0  # seconds; about 120


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
        raise measure.BenchError("the environment of Ray could not be made; --ray-trials 0 leaves it out")
    return done.stdout.strip()


def trial(interpreter: str, folder: Path) -> tuple[float, events.Trial]:
    """One run under Ray Train: the moment of its submit, and its times."""
    _run(interpreter, "train_ray.py", folder, TRIAL_LIMIT)
    try:
        return float((folder / "begin").read_text()), events.read(folder / "events.jsonl")
    except (OSError, ValueError, events.BadTrialError) as e:
        raise _bad(folder, str(e)) from e


def losses(interpreter: str, folder: Path) -> nodes.RayLoss:
    """An agent and two nodes lost under Ray."""
    _run(interpreter, "nodes_ray.py", folder, NODES_LIMIT)
    try:
        return nodes.ray_loss((folder / "nodes.jsonl").read_text())
    except (OSError, events.BadTrialError) as e:
        raise _bad(folder, str(e)) from e


def _run(interpreter: str, script: str, folder: Path, limit: float) -> None:
    """Runs a script in Ray's environment, and ends whatever it leaves."""
    folder.mkdir()
    env = measure.plain_env() | {"TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "log").open("wb") as log:
        p = subprocess.Popen(
            [interpreter, str(HERE / script), str(folder)],
            env=env,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
        )
        try:
            code = p.wait(limit)
        except subprocess.TimeoutExpired:
            raise _bad(folder, f"not at its end after {limit:.0f} s") from None
        finally:
            p.kill()
            p.wait()
            measure.end_all(str(folder))
    if code != 0:
        raise _bad(folder, f"ended with {code}")


def _bad(folder: Path, what: str) -> events.BadTrialError:
    return events.BadTrialError(f"{what}; it said: {measure.tail(folder / 'log').strip() or 'nothing'}")
