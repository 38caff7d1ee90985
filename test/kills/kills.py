"""Kills ranks, shims, forkservers, agent and head at random moments, and counts what must not happen.

Head and agent run as processes of their own; jobs of three ranks walk a hash chain
(chain.py) and checkpoint it. Target and moment of each SIGKILL are drawn from a printed
seed, two at once in one case of ten; a killed agent or head is started again a second
later. Every second job has grandchildren in sessions of their own. Half of the kills
happen with control groups, half with the fallback, unless ``--mode`` says otherwise.

Counted: processes left ten seconds after their job's end (by a scan of /proc from
outside; a zombie is not alive), two generations of one job alive at once, placement
groups that hold some but not all of their bundles, wrong restores, jobs that did not
succeed, committed steps that went back. Exit code 0 when all of them are zero.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHAIN = Path(__file__).with_name("chain.py")
WARM = Path(__file__).with_name("chain_warm.py")  # for every third job
TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED", "PREEMPTED")
BACK_AFTER = 1.0  # seconds until a killed agent or head is started again
LEFT_AFTER = 10.0  # seconds after a job's end at which nothing may be left


def environ(pid: int) -> dict[str, str]:
    """The environment of a living process; empty for a zombie or a stranger."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return {}
    if state in "ZX":
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, _, v in pairs}


def pids() -> list[int]:
    """Every process number."""
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


class Campaign:
    """One cluster under fire."""

    def __init__(self, binary: Path, folder: Path, mode: str, rng: random.Random, steps: int) -> None:
        self.binary, self.folder, self.rng, self.steps = binary, folder, rng, steps
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
        self.env["XDG_CONFIG_HOME"] = str(folder / "config")
        if mode == "fallback":
            self.env["TROUPE_CONTAINMENT"] = "fallback"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.due: dict[str, float] = {}  # when a killed daemon is started again
        self.jobs: dict[str, dict[str, Any]] = {}  # live ones, as last seen
        self.ended: dict[str, float] = {}
        self.committed: dict[str, int] = {}
        self.bad: collections.Counter[str] = collections.Counter()
        self.killed: collections.Counter[str] = collections.Counter()
        self.count = 0
        self.told: list[str] = []

    def note(self, kind: str, text: str) -> None:
        """Counts one thing that must not happen."""
        self.bad[kind] += 1
        self.told.append(f"{kind}: {text}")

    # The cluster.

    def command(self, *args: str, timeout: float = 20) -> str | None:
        """What a command printed, None when it failed: the head may be down just now."""
        try:
            done = subprocess.run(
                [str(self.binary), *args],
                check=False,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None

    def start(self, name: str) -> None:
        """Starts the head or the agent and, the first time, waits for its word."""
        head, node = self.folder / "head", self.folder / "node"
        if name == "head":
            if not head.exists():
                subprocess.run(
                    [str(self.binary), "head", "init", "--state", str(head)],
                    check=True,
                    env=self.env,
                    capture_output=True,
                )
                self.addresses = ("127.0.0.1:0", "127.0.0.1:0")
            words = ["head", "start", "--state", str(head), "--api-address", self.addresses[0]]
            words += ["--bus-address", self.addresses[1], "--orphan-time", "60s"]
        else:
            words = ["worker", "start", "--state", str(node), "--token-file", str(head / "node.token")]
            words += ["--head", f"nats://{self.addresses[1]}", "--gpus", "none", "--name", "node-1"]
        log = (self.folder / f"{name}.log").open("ab")
        at = log.tell()
        self.daemons[name] = subprocess.Popen(
            [str(self.binary), *words],
            env=self.env,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
        )
        log.close()
        if name == "head" and self.addresses[0].endswith(":0"):
            text = self.wait_for_line(f"{name}.log", at, "head ready at ")
            api, bus = text.split("head ready at ")[1].split()[0], text.split("bus ")[1].split()[0]
            # A head that comes back must be found where it was.
            self.addresses = (api.rpartition("/")[2].rstrip(","), bus.rpartition("/")[2])

    def wait_for_line(self, name: str, at: int, words: str) -> str:
        """The line of a log that holds some words."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with (self.folder / name).open() as f:
                f.seek(at)
                for line in f:
                    if words in line and line.endswith("\n"):
                        return line
            time.sleep(0.02)
        raise SystemExit(f"no {words!r} in {name}:\n{(self.folder / name).read_text()[-2000:]}")

    def stop(self) -> None:
        """Ends everything of this campaign."""
        for id_ in list(self.jobs):
            self.command("job", "stop", id_, "--grace", "1s")
        for p in self.daemons.values():
            with contextlib.suppress(OSError):
                p.send_signal(signal.SIGTERM)
        for p in self.daemons.values():
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
        deadline = time.monotonic() + LEFT_AFTER
        while (left := self.ours()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            self.note("process left", f"of the cluster: {pid}")

    def ours(self) -> list[int]:
        """Processes of this cluster's own: they have its folder in their environment."""
        mark = str(self.folder)
        return [pid for pid in pids() if any(mark in value for value in environ(pid).values())]

    # The jobs.

    def submit(self) -> None:
        """Starts one more job, if the head answers."""
        self.count += 1
        name = f"chain-{self.count}"
        script = WARM if self.count % 3 == 1 else CHAIN
        argv = [sys.executable, "-u", str(script), "--steps", str(self.steps)]
        if self.count % 2 == 0:
            argv.append("--grandchild")
        spec = {
            "name": name,
            "command": argv,
            "ranks": 3,
            "env": {"PYTHONPATH": str(ROOT / "sdk" / "python")},
            "restart": {"user": 1000, "infrastructure": 100000},
            "checkpoint": {"interval": "10steps", "keepLast": 2},
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(spec))
        out = self.command("submit", str(path), "--idempotency-key", name, "-o", "json")
        if out is None:
            self.count -= 1
            return
        job = json.loads(out)
        self.jobs[job["id"]] = job

    def look(self) -> None:
        """Reads the live jobs and checks what must hold at any moment."""
        alive: dict[str, set[str]] = {}
        for pid in pids():
            env = environ(pid)
            if env.get("TROUPE_JOB") in self.jobs and "TROUPE_GENERATION" in env:
                alive.setdefault(env["TROUPE_JOB"], set()).add(env["TROUPE_GENERATION"])
        for id_, generations in alive.items():
            if len(generations) > 1 and self.two_alive(id_):
                self.note("two generations alive", f"{id_}: {sorted(generations)}")
        for id_ in list(self.jobs):
            out = self.command("job", "get", id_, "-o", "json", timeout=5)
            if out is None:
                return
            job = json.loads(out)
            self.jobs[id_] = job
            step = job.get("committedStep")
            if step is not None:
                if step < self.committed.get(id_, -1):
                    self.note("committed step went back", f"{id_}: {self.committed[id_]} to {step}")
                self.committed[id_] = step
            if job["state"] in TERMINAL:
                self.finish(job)
        out = self.command("pg", "list", "--all", "-o", "json", timeout=5)
        for g in json.loads(out)["items"] if out else []:
            placed, want = len(g.get("placement", [])), len(g["spec"]["bundles"])
            if placed not in (0, want):
                self.note("partial gang", f"{g['id']}: {placed} of {want} bundles")

    def two_alive(self, id_: str) -> bool:
        """Looks again without a break: a scan of /proc is not one moment."""
        seen: dict[str, int] = {}
        for pid in pids():
            env = environ(pid)
            if env.get("TROUPE_JOB") == id_ and "TROUPE_GENERATION" in env:
                seen[env["TROUPE_GENERATION"]] = pid
        return len(seen) > 1 and sum(1 for pid in seen.values() if environ(pid)) > 1

    def finish(self, job: dict[str, Any]) -> None:
        """Judges an ended job."""
        id_ = job["id"]
        del self.jobs[id_]
        self.ended[id_] = time.monotonic()
        if job["state"] != "SUCCEEDED":
            self.note("job did not succeed", f"{id_}: {job['state']} {job.get('reason')}")
        for attempt in job["attempts"]:
            failure = attempt.get("failure") or {}
            if failure.get("exitCode") == 3:
                self.note("wrong restore", f"{id_} attempt {attempt['number']}: {failure}")

    def leftovers(self) -> int:
        """Counts processes of jobs that ended long enough ago."""
        due = {j for j, at in self.ended.items() if time.monotonic() - at >= LEFT_AFTER}
        left = 0
        for pid in pids():
            env = environ(pid)
            if env.get("TROUPE_JOB") in due:
                left += 1
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    self.note("process left", f"{env['TROUPE_JOB']}: {pid} {words}")
        for j in due:
            del self.ended[j]
        return left

    # The kills.

    def targets(self, kind: str) -> list[int]:
        """Living processes of a kind."""
        if kind in self.daemons:
            p = self.daemons[kind]
            return [p.pid] if p.poll() is None else []
        found = []
        for pid in pids():
            env = environ(pid)
            if kind == "rank" and env.get("TROUPE_JOB") in self.jobs and "RANK" in env:
                found.append(pid)
            if kind == "forkserver" and "TROUPE_WARM" in env and str(self.folder) in env["PYTHONPATH"]:
                found.append(pid)
        return found

    def shims(self) -> list[int]:
        """Living shims of this cluster."""
        found = []
        for pid in pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            here = str(self.folder).encode()
            if any(w.endswith(b"shim.json") and here in w for w in words):
                found.append(pid)
        return found

    def kill(self) -> int:
        """Sends one SIGKILL, or two at once; returns how many."""
        sent = 0
        for _ in range(2 if self.rng.random() < 0.1 else 1):
            kind = self.rng.choice(("rank", "shim", "forkserver", "agent", "head"))
            victims = self.shims() if kind == "shim" else self.targets(kind)
            if not victims:
                continue
            try:
                os.kill(self.rng.choice(victims), signal.SIGKILL)
            except OSError:
                continue
            self.killed[kind] += 1
            sent += 1
            if kind in self.daemons:
                self.due[kind] = time.monotonic() + BACK_AFTER
        return sent

    def revive(self) -> None:
        """Starts again what was killed a second ago."""
        for name, at in list(self.due.items()):
            if time.monotonic() >= at:
                self.daemons[name].wait()
                del self.due[name]
                self.start(name)

    def run(self, kills: int) -> None:
        """The whole campaign."""
        self.start("head")
        self.start("agent")
        done, last = 0, time.monotonic()
        while done < kills:
            if len(self.jobs) < 2 and not self.due:
                self.submit()
            wait = self.rng.uniform(0.05, 1.0)
            end = time.monotonic() + wait
            while time.monotonic() < end:
                self.revive()
                time.sleep(min(0.05, max(0.0, end - time.monotonic())))
            n = self.kill() if self.jobs else 0
            done += n
            last = time.monotonic() if n else last
            if time.monotonic() - last > 120:
                states = [(j["id"], j["state"]) for j in self.jobs.values()]
                self.note("nothing left to kill", f"after {done} kills; jobs {states}")
                break
            self.look()
            self.leftovers()
        # Faults off: everything must end well by itself.
        deadline = time.monotonic() + 180
        while (self.jobs or self.ended) and time.monotonic() < deadline:
            self.revive()
            self.look()
            self.leftovers()
            time.sleep(0.2)
        for id_, job in self.jobs.items():
            self.note("job did not end", f"{id_}: {job['state']} {job.get('reason')}")


def main() -> int:
    """Run both halves and print the count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--steps", type=int, default=100, help="of each job")
    parser.add_argument("--mode", choices=("both", "cgroup", "fallback"), default="both")
    parser.add_argument("--troupe", type=Path, default=ROOT / "bin" / "troupe")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    modes = ("cgroup", "fallback") if args.mode == "both" else (args.mode,)
    total: collections.Counter[str] = collections.Counter()
    killed: collections.Counter[str] = collections.Counter()
    sys.stdout.write(f"seed {seed}\n")
    for i, mode in enumerate(modes):
        share = args.kills // len(modes) + (args.kills % len(modes) if i == 0 else 0)
        folder = Path(tempfile.mkdtemp(prefix="troupe-kills-"))
        campaign = Campaign(args.troupe, folder, mode, random.Random(seed + i), args.steps)
        begin = time.monotonic()
        try:
            campaign.run(share)
        finally:
            campaign.stop()
        total += campaign.bad
        killed += campaign.killed
        what = ", ".join(f"{n} {k}" for k, n in sorted(campaign.killed.items()))
        took = time.monotonic() - begin
        sys.stdout.write(f"{mode}: {what} killed over {campaign.count} jobs in {took:.0f} s\n")
        for line in campaign.told[:20]:
            sys.stdout.write(f"  {line}\n")
        if args.keep or campaign.bad:
            sys.stdout.write(f"  logs and state: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    names = (
        "process left",
        "partial gang",
        "wrong restore",
        "two generations alive",
        "committed step went back",
        "job did not succeed",
    )
    sys.stdout.write(f"kills {sum(killed.values())}\n")
    for name in dict.fromkeys([*names, *total]):
        sys.stdout.write(f"{name}: {total[name]}\n")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
