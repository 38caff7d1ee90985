"""Small gangs: `true` on two nodes with two ranks each, alone and a thousand at once, beside Slurm.

Both sides have eight nodes on this machine with 32 CPUs each, and real processes. *End to
end* is from the exec of `troupe run` or `srun` to its end. *Through the queue* is from the
first submit to the last end: ours submits with the Go SDK from a process of its own, Slurm
with one `sbatch` after the other, a tenth as many.

Exit code: 0 when everything was measured, 1 when not, 130 when interrupted. A missed figure
is printed, not an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
import slurm
from measure import BenchError, Cluster, Reach, Row, Value, say

NODES, CPUS = 8, 32
GANG = (2, 2)  # nodes, and ranks on each
JOBS, PEER_JOBS = 1000, 100
WARM_UP = 3
LIMIT = 900.0  # seconds of the jobs of one run


class Ours:
    """A head and eight nodes, each with a state folder of its own."""

    def __init__(self, binary: Path, folder: Path) -> None:
        folder.mkdir()
        self.cluster, self.folder = Cluster(binary, folder), folder
        self.log = folder / "head.log"

    def spawn(self, name: str, *words: str) -> None:
        """Starts a daemon."""
        with (self.folder / f"{name}.log").open("ab") as log:
            subprocess.Popen(
                self.cluster.argv(*words),
                env=self.cluster.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def up(self) -> None:
        """Starts everything; returns when all nodes are ready."""
        state = str(self.folder / "head")
        self.cluster.command("head", "init", "--state", state)
        self.spawn(
            "head",
            "head",
            "start",
            "--state",
            state,
            "--api-address",
            "127.0.0.1:0",
            "--bus-address",
            "127.0.0.1:0",
        )
        deadline = time.monotonic() + 60
        while not (
            words := [
                x for x in measure.tail(self.log, 1 << 20).splitlines() if x.startswith("head ready at ")
            ]
        ):
            self.check(deadline, "the head is not ready")
        self.address, _, bus = words[0].removeprefix("head ready at ").partition(" bus ")
        self.address = self.address.split(",")[0].split()[0]
        for i in range(NODES):
            flags = (
                "--head",
                bus.strip(),
                "--token-file",
                f"{state}/node.token",
                "--cpus",
                str(CPUS),
                "--memory",
                "16GiB",
            )
            self.spawn(
                f"n{i}",
                "worker",
                "start",
                *flags,
                "--name",
                f"n{i}",
                "--gpus",
                "none",
                "--state",
                str(self.folder / f"n{i}"),
            )
        while True:
            nodes = json.loads(self.cluster.command("node", "list", "-o", "json"))["items"]
            if sum(n["state"] == "READY" for n in nodes) == NODES:
                return
            self.check(deadline, f"not all of {NODES} nodes are ready")

    def check(self, deadline: float, what: str) -> None:
        """Waits a little, but not for ever."""
        if time.monotonic() > deadline:
            raise BenchError(f"{what} after 60 s; the head's log ends: {measure.tail(self.log)}")
        time.sleep(0.05)

    def gang(self) -> float:
        """Milliseconds of one `troupe run` of `true`."""
        nodes, each = GANG
        begin = time.monotonic()
        self.cluster.command("run", "--ranks", str(nodes * each), "--ranks-per-node", str(each), "--", "true")
        return (time.monotonic() - begin) * 1000

    def queue(self, client: Path, jobs: int) -> float:
        """Gangs in a second."""
        token = str(self.folder / "head" / "admin.token")
        argv = [str(client), self.address, token, str(jobs), *map(str, GANG), "true"]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode != 0:
            raise BenchError(
                f"{jobs} gangs: {done.stderr.strip()}; the head's log ends: {measure.tail(self.log)}"
            )
        seconds: float = json.loads(done.stdout)["seconds"]
        return jobs / seconds


@contextlib.contextmanager
def ours_up(binary: Path, folder: Path) -> Iterator[Ours]:
    """Our cluster; afterwards nothing of it is left."""
    ours = Ours(binary, folder)
    try:
        ours.up()
        yield ours
    finally:
        measure.end_all(str(folder))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=None, help="of one gang alone (default BENCH_TRIALS, else 30)"
    )
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--troupe", type=Path, default=measure.TROUPE)
    args = parser.parse_args()
    alone: list[Value] = []
    peer_alone: list[Value] = []
    rate: list[Value] = []
    peer_rate: list[Value] = []
    try:
        trials = measure.trials(30) if args.trials is None else args.trials
        if trials < 1 or args.jobs < 1:
            raise BenchError("--trials and --jobs: at least 1")
        about = measure.machine(args.troupe)
        lacks = slurm.missing()
        say(measure.machine_text(about), f"no Slurm here: {lacks}" if lacks else "beside Slurm")
        with measure.workplace() as folder:
            folder.chmod(0o755)
            measure.on_disk(folder)
            client = folder / "jobs"
            subprocess.run(
                ["go", "build", "-trimpath", "-o", str(client), "./bench/jobs"], check=True, cwd=measure.ROOT
            )
            with ours_up(args.troupe, folder / "ours") as ours:
                for _ in range(WARM_UP):
                    ours.gang()
                alone += [ours.gang() for _ in range(trials)]
                rate.append(ours.queue(client, args.jobs))
            say(f"  ours: one gang {measure.median(alone):.0f} ms, {args.jobs} at once {rate[0]:.1f}/s")
            if not lacks:
                with slurm.cluster(folder / "slurm") as peer:
                    for _ in range(WARM_UP):
                        peer.gang(GANG[0], GANG[0] * GANG[1])
                    peer_alone += [peer.gang(GANG[0], GANG[0] * GANG[1]) for _ in range(trials)]
                    peer_rate.append(peer.queue(min(PEER_JOBS, args.jobs), GANG[0], GANG[0] * GANG[1]))
                say(f"  Slurm: one gang {measure.median(peer_alone):.0f} ms, queue {peer_rate[0]:.1f}/s")
        rows = [
            Row(
                "gang of 2 x 2, end to end",
                "ms",
                measure.median(alone),
                alone,
                Reach("<=", 70),
                measure.median(peer_alone),
                peer_alone,
            ),
            Row(
                "gangs through the queue",
                "per s",
                measure.median(rate),
                rate,
                Reach(">=", 3, "peer"),
                measure.median(peer_rate),
                peer_rate,
            ),
        ]
        measure.finish("jobs", about, rows, slurm=lacks or "measured")
    except (BenchError, subprocess.SubprocessError) as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
