"""Trains on four ranks, kills one in mid-run, and proves that the run recovers exactly.

It starts a cluster of its own (head and worker in one process, loopback only, its own
state folder), trains a small network with DDP on handwritten digits, SIGKILLs one rank
after the first committed checkpoint, waits for the end, then trains once more without
disturbance and compares the final weights bit for bit. Everything it started is ended
before it returns. Only the standard library is used here; the ranks need torch, numpy
and scikit-learn, and run with the Python that runs this file.

Exit code: 0 when the run recovered and the weights are equal, 1 when not, 130 when
interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "digits" / "train.py"
TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED", "PREEMPTED")

# A job as `troupe job get -o json` prints it.
Job = dict[str, Any]


class QuickstartError(Exception):
    """Something did not happen as it should; the text says what and what was seen."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line chose."""

    troupe: Path
    folder: Path
    ranks: int
    steps: int
    every: int
    victim: int
    step_time: float
    timeout: float
    keep: bool


class Cluster:
    """An embedded cluster in a folder of its own, driven through the command line."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.state = options.folder / "state"
        self.seen: set[int] = set()
        # A configuration folder of its own: the user's contexts stay as they are, and no
        # variable may point these commands at another cluster.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
        self.env["XDG_CONFIG_HOME"] = str(options.folder / "config")

    def run(self, *args: str, timeout: float = 60) -> str:
        """Runs one command and returns what it printed; a failure carries its words."""
        command = [str(self.options.troupe), *args]
        done = subprocess.run(
            command, check=False, env=self.env, cwd=ROOT, text=True, capture_output=True, timeout=timeout
        )
        if done.returncode != 0:
            words = done.stderr.strip() or done.stdout.strip()
            raise QuickstartError(f"`troupe {' '.join(args[:3])} …` ended with {done.returncode}: {words}")
        return done.stdout

    def json(self, *args: str) -> Any:
        """Runs one command with -o json, before any `--` that ends the flags."""
        at = args.index("--") if "--" in args else len(args)
        out = self.run(*args[:at], "-o", "json", *args[at:])
        try:
            return json.loads(out)
        except json.JSONDecodeError as e:
            raise QuickstartError(f"`troupe {args[0]}` printed no JSON: {out[:200]!r}") from e

    def up(self) -> None:
        """Starts head and worker in the background; returns when they serve."""
        self.run("up", "-d", "--state", str(self.state), "--port", "0")

    def down(self) -> None:
        """Ends the cluster and all it runs, and makes sure that no rank is left."""
        if self.state.exists():
            self.run("down", "--state", str(self.state), "--yes")
        left = sorted(pid for pid in self.seen if alive(pid, self.options.folder))
        if left:
            raise QuickstartError(f"processes left after `troupe down`: {left}")

    def submit(self, name: str, result: Path) -> Job:
        """Submits one training run; `result` is where rank 0 writes what it reached."""
        o = self.options
        flags = ["--detach", "--name", name, "--ranks", str(o.ranks)]
        flags += ["--checkpoint-every", f"{o.every}steps"]
        flags += ["--checkpoint-store", str(o.folder / "checkpoints")]
        flags += ["--env", f"PYTHONPATH={ROOT / 'sdk' / 'python'}"]
        script = [sys.executable, str(SCRIPT), "--steps", str(o.steps), "--result", str(result)]
        script += ["--step-time", str(o.step_time)]
        job: Job = self.json("run", *flags, "--", *script)
        return job

    def watch(self, job: str) -> Iterator[tuple[float, Job]]:
        """Yields (time, job) at each look, the last one at its end."""
        deadline = time.monotonic() + self.options.timeout
        while True:
            now = time.monotonic()
            view: Job = self.json("job", "get", job)
            for attempt in view.get("attempts", []):
                self.seen |= {r["pid"] for r in attempt.get("ranks", []) if r.get("pid")}
            yield now, view
            if view["state"] in TERMINAL:
                return
            if now > deadline:
                raise QuickstartError(
                    f"{job} is still {view['state']} at step {view.get('step')} after "
                    f"{self.options.timeout:.0f} s: {self.run('why', job).strip()}"
                )
            time.sleep(0.05)


def alive(pid: int, folder: Path) -> bool:
    """Whether a process of this run still lives; a pid may be another's by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and str(folder).encode() in command


class Timeline:
    """Prints what happened and when, in seconds since the submission."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def add(self, what: str, text: str, at: float | None = None) -> None:
        """Prints one line; `at` is a time of time.monotonic(), by default now."""
        seconds = (time.monotonic() if at is None else at) - self.start
        print(f"  {seconds:7.2f} s  {what:<11} {text}", flush=True)


@dataclasses.dataclass
class Disturbed:
    """What the killed run showed."""

    job: Job
    killed_at: float = 0.0  # time.monotonic() of the signal
    killed_step: int = 0
    restored: int | None = None
    running_again: float = 0.0  # all ranks started
    stepping_again: float = 0.0  # a step of the new attempt was seen
    caught_up: float = 0.0  # the step of the kill was reached again


def newest(job: Job) -> dict[str, Any]:
    """The newest attempt of a job, empty before the first."""
    attempts: list[dict[str, Any]] = job.get("attempts", [])
    return attempts[-1] if attempts else {}


def all_reached(attempt: dict[str, Any]) -> int:
    """The step that every rank of this attempt has reached, 0 while one has none.

    The job's own step may still be that of the attempt before.
    """
    steps = [r.get("step") for r in attempt.get("ranks", [])]
    return min((s if s is not None else 0 for s in steps), default=0)


def train_and_kill(cluster: Cluster, result: Path) -> Disturbed:
    """Runs the training, kills one rank after the first commit, and waits for the end."""
    o = cluster.options
    line = Timeline()
    job = cluster.submit("digits", result)
    line.add("submitted", f"{job['id']}: {o.ranks} ranks, {o.steps} steps")
    told: set[str] = set()

    def once(what: str, text: str, key: str = "") -> None:
        if (key or what) not in told:
            told.add(key or what)
            line.add(what, text)

    seen = Disturbed(job)
    committed_at = 0.0
    for now, view in cluster.watch(job["id"]):
        seen.job = view
        attempt = newest(view)
        step, committed = view.get("step"), view.get("committedStep")
        if attempt:
            nodes = sorted({r["node"] for r in attempt.get("ranks", [])})
            once("placed", f"on {', '.join(nodes)} ({view.get('placementGroup', '')})")
        if attempt.get("number") == 0:
            if attempt.get("running"):
                once("started", f"attempt 0, generation {attempt['generation']}")
            if step is not None and step >= 0:
                once("step", f"the first seen is {step}")
            if committed is not None and committed >= o.every:
                committed_at = committed_at or now
                once("checkpoint", f"step {committed} is committed")
                if not seen.killed_at and ready_to_kill(o, step, committed, now - committed_at):
                    seen.killed_at, seen.killed_step = kill(attempt, o), max(step or 0, committed)
                    text = f"rank {o.victim} by SIGKILL, at step {seen.killed_step}"
                    line.add("killed", text, seen.killed_at)
        elif attempt:
            failure = view["attempts"][0].get("failure") or {}
            seen.restored = attempt.get("restoreStep")
            once("noticed", f"rank {failure.get('rank')}: {failure.get('message')}")
            if attempt.get("running"):
                seen.running_again = seen.running_again or now
                once(
                    "restarted",
                    f"attempt {attempt['number']}, generation {attempt['generation']}, "
                    f"from step {seen.restored}",
                )
                reached = all_reached(attempt)
                if reached > (seen.restored or 0):
                    seen.stepping_again = seen.stepping_again or now
                    once("step", f"all ranks are at {reached} or further", "step again")
                    if reached >= seen.killed_step:
                        seen.caught_up = seen.caught_up or now
                        once("caught up", f"all ranks are past step {seen.killed_step}")
    end = time.monotonic()
    seen.stepping_again = seen.stepping_again or end  # it may end between two looks
    seen.caught_up = seen.caught_up or end
    line.add("done" if view["state"] == "SUCCEEDED" else "ended", view["state"])
    return seen


def ready_to_kill(o: Options, step: int | None, committed: int, since: float) -> bool:
    """Between two checkpoints, so that some steps are lost and must be done again.

    The step is reported about once a second, so it may never be seen in between; a
    second after the first commit is as good a moment.
    """
    return since > 1 or (step is not None and step >= committed + max(1, o.every // 4))


def kill(attempt: dict[str, Any], o: Options) -> float:
    """SIGKILLs the victim's process and returns the time."""
    pids = {r["rank"]: r.get("pid") for r in attempt["ranks"]}
    pid = pids.get(o.victim)
    if not pid:
        raise QuickstartError(f"rank {o.victim} has no pid: {pids}")
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def check(seen: Disturbed, o: Options) -> None:
    """Whether what happened is what should; a lucky end must not pass for a recovery."""
    job = seen.job
    wrong = []
    if not seen.killed_at:
        wrong.append("it ended before a rank could be killed")
    if job["state"] != "SUCCEEDED":
        wrong.append(f"it ended as {job['state']}: {(job.get('reason') or {}).get('text')}")
    attempts = job.get("attempts", [])
    if seen.killed_at and len(attempts) != 2:
        wrong.append(f"it took {len(attempts)} attempts, not 2")
    if len(attempts) > 1:
        failure = attempts[0].get("failure") or {}
        if failure.get("rank") != o.victim or failure.get("exitCode") != 128 + signal.SIGKILL:
            wrong.append(f"the root cause names another rank or end: {failure}")
        if not attempts[1].get("restoreStep"):
            wrong.append("the second attempt did not restore a checkpoint")
        if attempts[1]["generation"] <= attempts[0]["generation"]:
            wrong.append("the second attempt has no newer generation")
    if wrong:
        raise QuickstartError(f"{job['id']}: " + "; ".join(wrong))


def read_result(path: Path) -> dict[str, Any]:
    """What rank 0 wrote at the end: step, accuracy and the digest of the weights."""
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        _ = result["weights_sha256"], result["accuracy"], result["step"]
    except (OSError, ValueError, KeyError) as e:
        raise QuickstartError(f"the result of the training is not readable: {path}: {e!r}") from e
    return result


def show(cluster: Cluster) -> bool:
    """Both runs and the comparison; True when the weights are equal."""
    o = cluster.options
    print(f"Troupe quickstart: {o.ranks} ranks train on handwritten digits and one is killed\n")
    cluster.up()
    one, two = o.folder / "interrupted.json", o.folder / "undisturbed.json"
    seen = train_and_kill(cluster, one)
    try:
        check(seen, o)
    except QuickstartError as e:
        raise QuickstartError(f"{e}\n{cluster.run('job', 'logs', seen.job['id'])[-4000:]}") from e
    print(f"\nThe same {o.steps} steps once more, undisturbed …", flush=True)
    line = Timeline()
    *_, (_, view) = cluster.watch(cluster.submit("digits-undisturbed", two)["id"])
    if view["state"] != "SUCCEEDED" or len(view["attempts"]) != 1:
        raise QuickstartError(
            f"the undisturbed run ended as {view['state']} after {len(view['attempts'])} attempts\n"
            f"{cluster.run('job', 'logs', view['id'])[-4000:]}"
        )
    line.add("done", view["state"])
    killed, whole = read_result(one), read_result(two)
    again = seen.killed_step - (seen.restored or 0)
    print(f"""
  accuracy   {killed["accuracy"]:.4f} on digits that were not trained on
  lost       {seen.caught_up - seen.killed_at:.2f} s from the kill to the same step again:
             {seen.running_again - seen.killed_at:.2f} s until all ranks had started, \
{seen.stepping_again - seen.killed_at:.2f} s until they stepped, {again} steps done again
  weights    {killed["weights_sha256"]}  interrupted
             {whole["weights_sha256"]}  undisturbed""")
    equal = all(killed[k] == whole[k] for k in ("weights_sha256", "accuracy", "step"))
    print(f"             {'equal, bit for bit' if equal else 'NOT EQUAL'}\n", flush=True)
    return equal


def parse(argv: list[str]) -> Options:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--troupe", type=Path, default=ROOT / "bin" / "troupe", help="the binary")
    parser.add_argument("--state", type=Path, default=ROOT / ".quickstart", help="own folder")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--kill-rank", type=int, default=2, dest="victim")
    parser.add_argument("--step-time", type=float, default=0.01, help="seconds to sleep in each step")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each run")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    a = parser.parse_args(argv)
    if not 0 <= a.victim < a.ranks:
        parser.error(f"--kill-rank {a.victim}: there are ranks 0 to {a.ranks - 1}")
    if a.steps < 3 * a.every:
        parser.error(f"--steps {a.steps}: at least three times --every {a.every}")
    if not a.troupe.exists():
        parser.error(f"{a.troupe} is not there: make build")
    # One folder for each process, so that two quickstarts of one checkout can run.
    folder = a.state.resolve() / str(os.getpid())
    return Options(
        a.troupe.resolve(), folder, a.ranks, a.steps, a.every, a.victim, a.step_time, a.timeout, a.keep
    )


def interrupted(number: int, frame: object) -> None:
    """SIGTERM ends it like Ctrl-C, so that the cluster is taken down."""
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Runs the quickstart and returns its exit code."""
    o = parse(argv)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    o.folder.mkdir(parents=True)
    cluster = Cluster(o)
    code = 1
    try:
        code = 0 if show(cluster) else 1
    except (QuickstartError, subprocess.TimeoutExpired) as e:
        print(f"\nerror: {e}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted; ending what was started", file=sys.stderr)
        code = 130
    try:
        # A second Ctrl-C must not leave a cluster behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cluster.down()
    except (QuickstartError, subprocess.TimeoutExpired) as e:
        print(f"error: {e}", file=sys.stderr)
        code = code or 1
    if code == 0 and not o.keep:
        shutil.rmtree(o.folder)
        with contextlib.suppress(OSError):
            o.folder.parent.rmdir()
    else:
        print(f"kept: {o.folder}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
