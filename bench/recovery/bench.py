"""Times recovery and start of a DDP job, against torchrun, and counts what kills leave.

Trials of the two sides alternate, and so does who begins. A trial is one run of
train_ddp.py with four ranks on the CPU (gloo): submit, two SIGKILLs of rank 1, the end.
Ours is `troupe run` on a cluster that is up; the peer is torchrun, with the workaround
without which it never comes back. Shipped defaults and the same environment. Ours comes
twice: *warm*, as it ships, after one job of the same script, when the spare forkserver is
ready; and *cold*, with --no-warm, a plain exec of the interpreter as on the peer's side.
Ray Train runs the same ranks and kills a tenth as often, in an environment that is made
for it. The page cache is warm for all. Nothing of the one side runs during a trial of the other.

Memory is weighed with four ranks that have imported torch and wait: the sum of the
proportional set sizes of ranks, command, and launcher or shim and forkserver.

Lost nodes: an agent alone killed, a whole node killed, a whole node stopped (nodes.py), and
the same under Ray, whose trials take two minutes each.

What kills leave: the kill campaign (test/kills) on our side, and on both sides a SIGKILL
of the command that owns the job, with an outside scan ten seconds later.

Exit code: 0 when everything was measured, 1 when a trial of ours failed or a process was
left, 130 when interrupted. A missed figure is printed, not an error: machines are noisy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import events
import measure
import nodes
import ray_peer
from measure import BenchError, Cluster, Reach, Row, Value, say

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "train_ddp.py"
CAMPAIGN = measure.ROOT / "test" / "kills" / "kills.py"
SIDES = ("ours", "peer")
KINDS = ("warm", "cold", "peer")  # of trials: ours in two ways
IDLE = HERE / "idle.py"
MB = 1e6
RESTARTS = "5"
TRIAL_LIMIT = 180.0  # seconds; a trial takes about 25 on two cores
LEFT_AFTER = 10.0
SPARE = "a spare forkserver is ready"  # in the cluster's log

# With the agent's store shared with the ranks (its default), the second attempt of torch
# 2.15 reads the keys that the first one left in it and never forms a process group.
WORKAROUND = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Side:
    """Starts jobs in one way; `folder` and every process of a trial are its own."""

    def __init__(self, name: str, folder: Path, binary: Path) -> None:
        self.name, self.folder, self.binary = name, folder, binary
        self.ours = name != "peer"

    @contextlib.contextmanager
    def start(
        self, env: dict[str, str], command: list[str], *folders: Path
    ) -> Iterator[tuple[float, subprocess.Popen[bytes]]]:
        """Starts four ranks of a command; yields the moment of the exec, and the owner."""
        for folder in (self.folder, *folders):
            folder.mkdir()
        # torchrun leaves its folder of logs behind; here it goes with the trial's.
        env = env | {"TMPDIR": str(self.folder)}
        with contextlib.ExitStack() as stack:
            stack.callback(measure.end_all, str(self.folder))
            if self.ours:
                cluster = stack.enter_context(measure.cluster_up(self.binary, self.folder))
                if self.name == "warm":
                    self.prepare(cluster, env, command)
                argv, whole = self.troupe(cluster, env, command), cluster.env
            else:
                argv, whole = self.torchrun(command), measure.plain_env() | env | WORKAROUND
            log = stack.enter_context((self.folder / "log").open("wb"))
            begin = time.monotonic()
            owner = subprocess.Popen(argv, env=whole, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                yield begin, owner
            finally:
                owner.kill()
                owner.wait()

    def prepare(self, cluster: Cluster, env: dict[str, str], command: list[str]) -> None:
        """Runs the job once, and waits for the spare forkserver that it leaves."""
        env = env | {"EVENTS": str(self.folder / "before.jsonl")}
        argv = self.troupe(cluster, env, command)
        done = subprocess.run(argv, check=False, env=cluster.env, capture_output=True, timeout=TRIAL_LIMIT)
        if done.returncode != 0:
            raise self.bad(f"the job before ended with {done.returncode}")
        deadline = time.monotonic() + 120
        while SPARE not in measure.tail(cluster.state / "up.log", 1 << 20):
            if time.monotonic() > deadline:
                raise self.bad("no spare forkserver came up")
            time.sleep(0.1)

    def troupe(self, cluster: Cluster, env: dict[str, str], command: list[str]) -> list[str]:
        """The command line of our side."""
        flags = [f"--env={k}={v}" for k, v in env.items()]
        flags += ["--no-warm"] if self.name == "cold" else []
        flags += [f"--env={k}" for k in measure.PASSED if k in cluster.env]
        return cluster.argv("run", "--ranks", "4", "--max-restarts", RESTARTS, *flags, "--", *command)

    def torchrun(self, command: list[str]) -> list[str]:
        """The command line of the peer; what `torchrun` on the PATH runs, with this Python."""
        flags = ["--standalone", "--nproc-per-node=4", f"--max-restarts={RESTARTS}"]
        if command[0] == sys.executable:
            command = command[1:]
        else:
            flags.append("--no-python")
        return [sys.executable, "-m", "torch.distributed.run", *flags, *command]

    def trial(self) -> tuple[float, events.Trial]:
        """One run of the training script: the moment of its submit, and its times."""
        path = self.folder / "events.jsonl"
        with self.start({"EVENTS": str(path)}, [sys.executable, str(TRAIN)]) as (begin, owner):
            try:
                code = owner.wait(TRIAL_LIMIT)
            except subprocess.TimeoutExpired:
                raise self.bad(f"not at its end after {TRIAL_LIMIT:.0f} s") from None
            if code != 0:
                raise self.bad(f"ended with {code}")
        try:
            return begin, events.read(path)
        except events.BadTrialError as e:
            raise self.bad(str(e)) from e

    def bad(self, what: str) -> events.BadTrialError:
        """A failed trial, with the end of what it said."""
        return events.BadTrialError(
            f"{what}; it said: {measure.tail(self.folder / 'log').strip() or 'nothing'}"
        )

    def weigh(self) -> tuple[float, float | None]:
        """Proportional set sizes of four idle ranks and what runs them, in MB, and the
        resident set of the forkserver, if there is one."""
        ready = self.folder / "ready"
        with self.start({"EVENTS": str(ready)}, [sys.executable, str(IDLE)], ready) as (_, owner):
            deadline = time.monotonic() + 120
            while len(list(ready.iterdir())) != 4:
                if time.monotonic() > deadline or owner.poll() is not None:
                    raise self.bad("not all ranks came up")
                time.sleep(0.1)
            time.sleep(1)
            # What serves before any job, our head and agent, is no part of the job.
            there = [p for p in measure.marked(str(self.folder)) if "up" not in measure.words(p)[1:2]]
            warm = [p for p in there if b"TROUPE_WARM=" in measure.environ(p)]
            size = sum(measure.pss(p) for p in there) / MB
            return size, measure.rss(warm[0]) / MB if warm else None

    def left_after_owner(self) -> list[str]:
        """Kills the owner of four idle ranks; the processes that are there ten seconds later."""
        with self.start({}, ["sleep", "600"]) as (_, owner):
            deadline = time.monotonic() + 60
            while len(ranks := self.sleeping()) != 4:
                if time.monotonic() > deadline or owner.poll() is not None:
                    raise self.bad(f"{len(ranks)} of 4 ranks started")
                time.sleep(0.05)
            # What serves before any job, our head and agent, is no part of the job.
            served = [p for p in measure.marked(str(self.folder)) if "up" in measure.words(p)[1:2]]
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            time.sleep(LEFT_AFTER)
            left = [p for p in measure.marked(str(self.folder)) if p not in served]
            return [f"{p} {' '.join(measure.words(p))}" for p in left]

    def sleeping(self) -> list[int]:
        """The ranks of left_after_owner."""
        # Ours resolves the program before it is started.
        found = ((p, measure.words(p)) for p in measure.marked(str(self.folder)))
        return [p for p, w in found if w and [Path(w[0]).name, *w[1:]] == ["sleep", "600"]]


def campaign(args: argparse.Namespace, folder: Path) -> tuple[int, int]:
    """Runs the kill campaign: how many processes it found left, and its exit code."""
    argv = [sys.executable, "-u", str(CAMPAIGN), "--kills", str(args.kills), "--troupe", str(args.troupe)]
    if args.seed is not None:
        argv += ["--seed", str(args.seed)]
    left = None
    # A session of its own: at a terminal Ctrl-C reaches it through this program alone,
    # once, so that nothing interrupts it while it ends its cluster.
    p = subprocess.Popen(
        argv,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert p.stdout is not None
    try:
        for line in p.stdout:
            say("  " + line.rstrip())
            if line.startswith("process left: "):
                left = int(line.split(": ")[1])
        p.wait()
    except BaseException:
        p.send_signal(signal.SIGINT)
        p.wait(90)
        raise
    if left is None:
        raise BenchError(f"the kill campaign gave no count (exit code {p.returncode})")
    return left, p.returncode


def runs_of(peer: str, args: argparse.Namespace) -> int:
    """How many trials of a peer were asked for."""
    return int(args.ray_trials if peer == "ray" else args.trials)


class Recovery:
    """All values of this benchmark."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.kill: dict[str, list[Value]] = {k: [] for k in (*KINDS, "ray")}
        self.submit: dict[str, list[Value]] = {k: [] for k in (*KINDS, "ray")}
        self.pss: dict[str, list[Value]] = {s: [] for s in SIDES}
        self.forkserver: list[Value] = []
        self.left: dict[str, list[Value]] = {s: [] for s in SIDES}
        self.losses: list[nodes.Loss | None] = []
        self.ray_losses: list[nodes.RayLoss | None] = []
        self.parts: list[dict[str, object]] = []  # where the time of a rank's start went
        self.threads: set[int] = set()
        self.failed: list[str] = []
        self.broken = False
        self.ray = ray_peer.python() if args.ray_trials else ""

    def fail(self, side: str, what: str) -> None:
        """Notes a trial that gave no value. A peer's failure is not ours."""
        self.failed.append(f"{side}: {what}")
        self.broken |= side not in ("peer", "ray")
        say(f"  {side} FAILED: {what}")

    def trial(self, number: int, side: str) -> None:
        """One trial of one side."""
        folder = self.folder / f"{side}-{number}"
        try:
            if side == "ray":
                begin, t = ray_peer.trial(self.ray, folder)
            else:
                begin, t = Side(side, folder, self.args.troupe).trial()
        except (events.BadTrialError, BenchError, subprocess.TimeoutExpired) as e:
            self.fail(side, str(e))
            self.kill[side] += [None] * len(events.KILLED)
            self.submit[side].append(None)
            return
        submit, kills = t.submit_to_first(begin), t.kill_to_first()
        self.submit[side].append(submit)
        self.kill[side] += kills
        if side != "ray":  # which sets its own
            self.threads.add(t.threads)
        self.parts.append({"trial": number, "side": side, "import": t.imported, "join": t.joined})
        say(
            f"  {number + 1:3} {side}: submit to first step {submit:.2f} s, kill to first step "
            f"{', '.join(f'{k:.2f}' for k in kills)} s (import {t.imported:.2f}, join {t.joined:.2f})"
        )

    def weigh(self, number: int, side: str) -> None:
        """Weighs the idle ranks of one side once."""
        try:
            size, warm = Side(side, self.folder / f"{side}-idle-{number}", self.args.troupe).weigh()
        except (events.BadTrialError, BenchError, subprocess.TimeoutExpired) as e:
            self.fail(side, str(e))
            self.pss[side].append(None)
            return
        self.pss[side].append(size)
        if side == "ours":
            self.forkserver.append(warm)
        say(f"  {side}: four idle ranks {size:.0f} MB")

    def lose(self, number: int, side: str) -> None:
        """An agent and two nodes lost, once."""
        folder = self.folder / f"{side}-nodes-{number}"
        found: nodes.Loss | nodes.RayLoss | None = None
        try:
            if side == "ray":
                found = ray_peer.losses(self.ray, folder)
            else:
                found = nodes.trial(self.args.troupe, folder)
                self.broken |= found.agent_restarts > 0
            say(f"  {number + 1:3} {side}: {found.text()}")
        except (events.BadTrialError, BenchError, subprocess.TimeoutExpired) as e:
            self.fail(side, str(e))
        if side == "ray":
            self.ray_losses.append(found if isinstance(found, nodes.RayLoss) else None)
        else:
            self.losses.append(found if isinstance(found, nodes.Loss) else None)

    def lost_nodes(self) -> None:
        """All trials of nodes.py, with Ray's spread over them."""
        of, each = self.args.node_trials, min(self.args.node_trials, self.args.ray_trials)
        say(f"{of} trials of lost nodes, {each} of Ray")
        for i in range(of):
            self.lose(i, "ours")
            if i * each // of != (i + 1) * each // of:
                self.lose(i, "ray")
        for name, f in nodes.behind(self.losses).items():
            all_of = measure.spread(f["runs"])
            say(f"  {name}: {measure.figure(f['median'])} s ({all_of}), reach <= {f['reach']} s")

    def owner_kill(self, number: int, side: str) -> None:
        """One kill of an owner."""
        try:
            left = Side(side, self.folder / f"{side}-owner-{number}", self.args.troupe).left_after_owner()
        except (events.BadTrialError, BenchError, subprocess.TimeoutExpired) as e:
            self.fail(side, str(e))
            self.left[side].append(None)
            return
        self.left[side].append(len(left))
        self.broken |= side == "ours" and bool(left)
        say(f"  {side}: owner killed, {len(left)} processes left", *(f"    {x}" for x in left))

    def run(self) -> None:
        """Everything, in order."""
        # The page cache is warm for both; who runs first must not matter.
        warm = "import torch.distributed.run, torch.distributed.elastic.rendezvous"
        done = subprocess.run(
            [sys.executable, "-c", warm], check=False, env=measure.plain_env(), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise BenchError(f"{sys.executable} cannot import torch: {done.stderr.strip()[-300:]}")
        say(f"{self.args.trials} trials of each side")
        for i in range(self.args.trials):
            for side in KINDS if i % 2 == 0 else KINDS[::-1]:
                self.trial(i, side)
            # Ray's, which take a minute each, are spread over the whole time.
            each, of = self.args.ray_trials, self.args.trials
            if i * each // of != (i + 1) * each // of:
                self.trial(i, "ray")
        if len(self.threads) > 1:
            self.fail("ours", f"ranks of the sides have different thread counts: {sorted(self.threads)}")
        say(f"memory, {self.args.weighings} times on each side")
        for i in range(self.args.weighings):
            for side in SIDES if i % 2 == 0 else SIDES[::-1]:
                self.weigh(i, side)
        say(f"{self.args.owner_kills} kills of the owner on each side")
        for i in range(self.args.owner_kills):
            for side in SIDES if i % 2 == 0 else SIDES[::-1]:
                self.owner_kill(i, side)
        if self.args.node_trials:
            self.lost_nodes()
        if self.args.kills:
            say(f"kill campaign, {self.args.kills} kills")
            left, code = campaign(self.args, self.folder)
            self.left["ours"].insert(0, left)
            if code != 0:
                self.fail("ours", f"the kill campaign ended with {code}")

    def rows(self) -> list[Row]:
        """What goes into the table."""
        rows = [
            Row(
                row=f"{name}, {kind}{what}",
                unit="s",
                ours=measure.median(runs[kind]),
                ours_runs=runs[kind],
                peer=measure.median(runs[peer]),
                peer_runs=runs[peer],
                reach=Reach("<=", reach if kind == "warm" else 1.0, of="peer"),
            )
            for peer, what, kills, submits in (
                ("peer", "", 0.1, 0.125),
                ("ray", ", ray train", 0.04, 0.125),
            )
            if runs_of(peer, self.args)
            for kind in ("warm", "cold")
            for name, runs, reach in (
                ("kill to first step", self.kill, kills),
                ("submit to first step", self.submit, submits),
            )
        ]
        if self.pss["ours"]:
            rows.append(
                Row(
                    row="idle ranks PSS",
                    unit="MB",
                    ours=measure.median(self.pss["ours"]),
                    ours_runs=self.pss["ours"],
                    peer=measure.median(self.pss["peer"]),
                    peer_runs=self.pss["peer"],
                    reach=Reach("<=", 0.5, of="peer"),
                )
            )
            # Resident, shared libraries included: what one costs when nothing shares it.
            rows.append(
                Row(
                    row="warm forkserver",
                    unit="MB",
                    ours=measure.median(self.forkserver),
                    ours_runs=self.forkserver,
                    reach=Reach("<=", 800),
                )
            )
        if self.left["ours"] or self.left["peer"]:
            # Sums, not medians: one process left is one too many. A kill that gave no
            # count leaves the sum unknown.
            total = {s: None if None in v or not v else sum(measure.known(v)) for s, v in self.left.items()}
            rows.append(
                Row(
                    row="processes left after kills",
                    unit="count",
                    ours=total["ours"],
                    ours_runs=self.left["ours"],
                    peer=total["peer"],
                    peer_runs=self.left["peer"],
                    reach=Reach("<=", 0),
                )
            )
        return rows + nodes.rows(self.losses, self.ray_losses)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=None, help="of each side (default BENCH_TRIALS, else 30)"
    )
    parser.add_argument("--kills", type=int, default=200, help="of the kill campaign; 0 leaves it out")
    parser.add_argument("--weighings", type=int, default=3, help="of idle ranks, on each side")
    parser.add_argument("--owner-kills", type=int, default=3, help="of the owner, on each side")
    parser.add_argument("--seed", type=int, default=None, help="of the kill campaign")
    parser.add_argument(
        "--ray-trials", type=int, default=None, help="of Ray (default a tenth of the others); 0: none"
    )
    parser.add_argument(
        "--node-trials", type=int, default=None, help="of lost nodes (default as --trials); 0: none"
    )
    parser.add_argument("--troupe", type=Path, default=measure.TROUPE)
    args = parser.parse_args()
    try:
        args.trials = measure.trials(30) if args.trials is None else args.trials
        if args.trials < 1:
            raise BenchError("--trials: at least 1")
        args.ray_trials = -(-args.trials // 10) if args.ray_trials is None else args.ray_trials
        if not 0 <= args.ray_trials <= args.trials:
            raise BenchError("--ray-trials: from 0 to the number of trials")
        args.node_trials = args.trials if args.node_trials is None else args.node_trials
        if args.node_trials < 0:
            raise BenchError("--node-trials: at least 0")
        about = measure.machine(args.troupe)
        say(measure.machine_text(about))
        with measure.workplace() as folder:
            bench = Recovery(args, folder)
            bench.run()
        measure.finish(
            "recovery",
            about,
            bench.rows(),
            trials=args.trials,
            kills=args.kills,
            threadsPerRank=sorted(bench.threads),
            peer={"program": "torchrun", "environment": WORKAROUND},
            parts=bench.parts,
            nodes=nodes.behind(bench.losses),
            failed=bench.failed,
        )
    except BenchError as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    return 1 if bench.broken else 0


if __name__ == "__main__":
    sys.exit(main())
