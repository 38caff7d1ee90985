"""Takes the agent, all processes and all processor time of a node away, and times what follows.

A cluster of its own: a head and three nodes on this machine, each node an agent with a
state folder of its own and room for one rank. Two ranks (where.py) hold two of the nodes;
the third is where one goes when its node is gone. *Running elsewhere* is the moment at
which the last rank of the next attempt has said so from Python's first line; *lost* is the
head's own event.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import measure
from events import BadTrialError
from measure import Reach, Row, Value

WHERE = Path(__file__).resolve().parent / "where.py"
NODES = ("node-1", "node-2", "node-3")
RANKS = 2
LIMIT = 90.0  # seconds for any one thing
T = TypeVar("T")


# What one trial of Ray has to say, in order, and then no more.
RAY = ("agent killed", "node killed", "node cut off")


@dataclass(frozen=True)
class Loss:
    """What one trial found, in seconds."""

    killed_lost: float
    killed_elsewhere: float
    cut_lost: float
    cut_elsewhere: float
    agent_restarts: int  # of ranks, after a SIGKILL of an agent alone
    agent_back: float  # from the start of the next agent until the head calls the node ready

    def text(self) -> str:
        """One line for people."""
        return (
            f"node killed: lost {self.killed_lost:.2f}, elsewhere {self.killed_elsewhere:.2f} s; "
            f"cut off: lost {self.cut_lost:.2f}, elsewhere {self.cut_elsewhere:.2f} s; "
            f"agent killed: {self.agent_restarts} restarts, back {self.agent_back:.2f} s"
        )


def starts(text: str, attempt: int) -> dict[int, dict[str, Any]] | None:
    """The lines of an attempt by rank, once all ranks have written theirs.

    A last line that is still being written is left for the next look. A rank that starts
    twice in one attempt, or one that is too many, makes the trial worth nothing.
    """
    found: dict[int, dict[str, Any]] = {}
    for row in map(json.loads, text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]):
        if row["attempt"] > attempt:
            raise BadTrialError(f"attempt {row['attempt']} runs, when {attempt} was the newest to expect")
        if row["attempt"] != attempt:
            continue
        if row["rank"] in found or not 0 <= row["rank"] < RANKS:
            raise BadTrialError(f"rank {row['rank']} of attempt {attempt} started twice, or is one too many")
        found[row["rank"]] = row
    return found if len(found) == RANKS else None


class Nodes:
    """One cluster, in a folder of its own."""

    def __init__(self, binary: Path, folder: Path) -> None:
        folder.mkdir()
        self.cluster, self.folder = measure.Cluster(binary, folder), folder
        self.where = folder / "where.jsonl"
        self.where.touch()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ids: dict[str, str] = {}
        self.bus = self.job = ""

    def spawn(self, name: str, *words: str) -> None:
        """Starts a daemon."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.cluster.argv(*words),
                env=self.cluster.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def worker(self, name: str) -> None:
        """Starts the agent of a node."""
        words = ["worker", "start", "--head", self.bus, "--token-file", str(self.folder / "head/node.token")]
        self.spawn(name, *words, "--name", name, "--cpus", "1", "--state", str(self.folder / name))

    def until(self, what: str, look: Callable[[], T | None], every: float = 0.01) -> T:
        """Waits for something, and returns it."""
        deadline = time.monotonic() + LIMIT
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise BadTrialError(f"{what}: not within {LIMIT:.0f} s; the head's log ends: {self.log()}")
            time.sleep(every)
        return found

    def log(self) -> str:
        """The end of what the head said."""
        return measure.tail(self.folder / "head.log").strip()

    def up(self) -> None:
        """Starts everything, and the job; returns when its ranks run."""
        self.cluster.command("head", "init", "--state", str(self.folder / "head"))
        loopback = ("--api-address", "127.0.0.1:0", "--bus-address", "127.0.0.1:0")
        self.spawn("head", "head", "start", "--state", str(self.folder / "head"), *loopback)
        self.bus = self.until("the head is ready", self.ready)
        for name in NODES:
            self.worker(name)
        self.all_ready()
        spec = {"name": "where", "ranks": RANKS, "strategy": "STRICT_SPREAD"}
        spec["command"] = [sys.executable, str(WHERE), str(self.where)]
        (self.folder / "job.json").write_text(json.dumps(spec))
        told = self.cluster.command("submit", str(self.folder / "job.json"), "-o", "json")
        self.job = json.loads(told)["id"]

    def ready(self) -> str | None:
        """The address of the bus, once the head has printed it."""
        for line in measure.tail(self.folder / "head.log", 1 << 20).splitlines():
            if line.startswith("head ready at "):
                return line.partition(" bus ")[2].strip()
        return None

    def all_ready(self) -> None:
        """Waits until every node can take work."""

        def look() -> bool | None:
            told = json.loads(self.cluster.command("node", "list", "-o", "json"))["items"]
            self.ids = {n["name"]: n["id"] for n in told}
            return [n["state"] for n in told] == ["READY"] * len(NODES) or None

        self.until("all nodes are ready", look, 0.1)

    def event(self, node: str, kind: str, after: float) -> float | None:
        """When the head first said something of a node, by the wall clock; None: not yet."""
        told = self.cluster.command("events", "--for", f"node/{self.ids[node]}", "--all", "-o", "json")
        for e in json.loads(told)["items"]:
            if e["type"] == kind and (t := _seconds(e["time"])) >= after:
                return t
        return None

    def runs(self, attempt: int) -> dict[int, dict[str, Any]]:
        """The first lines of all ranks of an attempt, and the node of each."""
        rows = self.until(f"attempt {attempt} runs", lambda: starts(self.where.read_text(), attempt))
        told = json.loads(self.cluster.command("job", "get", self.job, "-o", "json"))
        for r in told["attempts"][-1]["ranks"]:
            if rows[r["rank"]]["pid"] != r["pid"]:
                raise BadTrialError(f"rank {r['rank']} is process {r['pid']}, and {rows[r['rank']]} started")
            rows[r["rank"]]["node"] = r["node"]
        return rows

    def processes(self, node: str) -> list[int]:
        """Every process of a node: agent, shims and ranks carry its folder's path."""
        return measure.marked(str(self.folder / node))

    def lose(self, signum: signal.Signals) -> tuple[float, float]:
        """Kills or stops a whole node of the newest attempt: until it is lost, and until
        the next attempt runs without it."""
        told = json.loads(self.cluster.command("job", "get", self.job, "-o", "json"))
        attempt = told["attempts"][-1]["number"]
        node = self.runs(attempt)[1]["node"]
        there = self.processes(node)
        if len(there) < 3:
            raise BadTrialError(f"{node} has {len(there)} processes, fewer than agent, shim and rank")
        wall, begin = time.time(), time.monotonic()
        for pid in there:
            with contextlib.suppress(OSError):
                os.kill(pid, signum)
        rows = self.runs(attempt + 1)
        if node in [r["node"] for r in rows.values()]:
            raise BadTrialError(f"attempt {attempt + 1} runs on {node}, which was taken away")
        lost = self.event(node, "node-lost", wall)
        if lost is None:
            raise BadTrialError(f"{node} was taken away, and attempt {attempt + 1} runs before it is lost")
        measure.end_all(str(self.folder / node))
        self.running.pop(node).wait()
        return lost - wall, max(r["t"] for r in rows.values()) - begin

    def kill_agent(self) -> tuple[int, float]:
        """Kills the agent of rank 0 alone and starts it again: restarts, and until it is back."""
        before = self.runs(0)
        node = before[0]["node"]
        wall = time.time()
        agent = self.running.pop(node)
        agent.kill()
        agent.wait()
        self.until(f"{node} is agentless", lambda: self.event(node, "node-agentless", wall), 0.1)
        wall = time.time()
        self.worker(node)
        back = self.until(f"{node} is back", lambda: self.event(node, "node-returned", wall), 0.1)
        # Every start writes a line: what the first attempt did not write was a restart.
        return len(self.where.read_text().splitlines()) - len(before), back - wall

    def again(self) -> None:
        """Starts the agents of nodes that were lost, and waits for them."""
        for name in [n for n in NODES if n not in self.running]:
            self.worker(name)
        self.all_ready()


def trial(binary: Path, folder: Path) -> Loss:
    """One whole trial."""
    nodes = Nodes(binary, folder)
    try:
        nodes.up()
        restarts, back = nodes.kill_agent()
        killed = nodes.lose(signal.SIGKILL)
        nodes.again()
        cut = nodes.lose(signal.SIGSTOP)
        return Loss(*killed, *cut, restarts, back)
    finally:
        measure.end_all(str(folder))
        for p in nodes.running.values():
            p.wait()


@dataclass(frozen=True)
class RayLoss:
    """What one trial of Ray found: seconds, and how often the actor was started again."""

    killed_elsewhere: float
    cut_elsewhere: float
    agent_restarts: int

    def text(self) -> str:
        """One line for people."""
        return (
            f"node killed: elsewhere {self.killed_elsewhere:.2f} s; cut off: elsewhere "
            f"{self.cut_elsewhere:.2f} s; agent killed: {self.agent_restarts} restarts"
        )


def ray_loss(text: str) -> RayLoss:
    """What nodes_ray.py has written; anything but the three losses in order is refused."""
    try:
        rows = [json.loads(line) for line in text.splitlines()]
        if tuple(r["what"] for r in rows) != RAY:
            raise BadTrialError(f"it wrote {[r['what'] for r in rows]}, not {list(RAY)}")
        return RayLoss(float(rows[1]["took"]), float(rows[2]["took"]), int(rows[0]["restarts"]))
    except (ValueError, KeyError, TypeError) as e:
        raise BadTrialError(f"what it wrote is not whole: {e!r}") from e


def rows(ours: Sequence[Loss | None], ray: Sequence[RayLoss | None]) -> list[Row]:
    """The rows of the table; None is a trial that gave nothing."""

    def row(name: str, unit: str, mine: str, reach: float) -> Row:
        runs: list[Value] = [None if x is None else getattr(x, mine) for x in ours]
        peers: list[Value] = [None if x is None else getattr(x, mine) for x in ray]
        count = unit == "count"  # a sum: one restart is one too many
        return Row(
            row=name,
            unit=unit,
            ours=_sum(runs) if count else measure.median(runs),
            ours_runs=runs,
            peer=_sum(peers) if count else measure.median(peers),
            peer_runs=peers,
            reach=Reach("<=", reach),
        )

    if not ours:
        return []
    return [
        row("node killed, running elsewhere", "s", "killed_elsewhere", 3.0),
        row("node cut off, running elsewhere", "s", "cut_elsewhere", 6.0),
        row("agent killed, rank restarts", "count", "agent_restarts", 0),
    ]


# What stands behind the rows and has to be reached too, in seconds.
BEHIND = {"killed_lost": 2.0, "cut_lost": 4.0, "agent_back": 3.0}


def behind(ours: Sequence[Loss | None]) -> dict[str, dict[str, Any]]:
    """Those figures, by name."""
    found = {}
    for name, reach in BEHIND.items():
        runs: list[Value] = [None if x is None else getattr(x, name) for x in ours]
        value = measure.median(runs)
        reached = None if value is None else value <= reach
        found[name] = {"median": value, "reach": reach, "reached": reached, "runs": runs}
    return found


def _sum(runs: Sequence[Value]) -> Value:
    """The sum, unknown when one of them is."""
    return None if None in runs or not runs else sum(measure.known(runs))


def _seconds(text: str) -> float:
    """A moment as RFC 3339 has it, with up to nine digits of a second, in UTC."""
    whole, _, part = text.removesuffix("Z").partition(".")
    moment = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp() + float(f"0.{part or 0}")
