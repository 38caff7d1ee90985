"""Placement groups of four bundles: create, ready, remove, through a head that makes each
durable, beside Ray.

Ours is the Go SDK in a process of its own against the HTTP API of `troupe up`, a head with
one voter whose log lies on a disk (a file system in memory is refused), shipped defaults.
A cycle is a create that is acknowledged after its commit, the group ready, and a remove
that is acknowledged. Ray keeps its groups in memory. The floor of one client is two entries
of a plain file, each synced, which is what durability costs by itself on this disk; that of
64 is the same requests and answers between a client and a server of net/http that do
nothing for them, which is what HTTP costs by itself on these cores.

Rounds: floors, ours and Ray in turn; a round is whole or does not count.

Exit code: 0 when everything was measured, 1 when not, 130 when interrupted. A missed figure
is printed, not an error.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recovery"))

import measure
import ray_peer
from measure import BenchError, Reach, Row, say

HERE = Path(__file__).resolve().parent
LIMIT = 600.0  # seconds of one run
CYCLES = 2000
RAY_CREATES, RAY_CYCLES = 100, 300  # Ray waits a second for devices that were just given back
CLIENTS = 64
# Creates: a device for each bundle. Cycles: bundles of which 64 clients' fit at once.
DEVICE, SMALL = ("100", "1"), ("2", "0")  # thousandths of a CPU, devices
DEVICES = "fake:8x80GiB"


@dataclasses.dataclass(frozen=True)
class Load:
    """What one run asks for."""

    count: int
    clients: int
    bundle: tuple[str, str]


CREATES, ONE, MANY = Load(CYCLES, 1, DEVICE), Load(CYCLES, 1, SMALL), Load(5 * CYCLES, CLIENTS, SMALL)


@dataclasses.dataclass
class Run:
    """One run: milliseconds of each create, and cycles in a second."""

    create: list[float]
    rate: float

    @classmethod
    def read(cls, text: str) -> Run:
        found: dict[str, Any] = json.loads(text)
        return cls(found["create"], len(found["create"]) / found["seconds"])

    def quantile(self, q: float) -> float:
        return measure.quantile(self.create, q)


def output(argv: list[str], env: dict[str, str] | None = None) -> str:
    """What a command printed; its failure carries its words."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=LIMIT, env=env)
    if done.returncode != 0:
        raise BenchError(
            f"`{Path(argv[0]).name} {argv[1]}` ended with {done.returncode}: {done.stderr[-1500:].strip()}"
        )
    return done.stdout


def ours(binary: Path, client: Path, folder: Path, load: Load) -> Run:
    """One run of ours on a cluster of its own."""
    folder.mkdir()
    with measure.cluster_up(binary, folder, "--gpus", DEVICES) as cluster:
        token = str(cluster.state / "head" / "admin.token")
        warm = [str(client), "cycles", cluster.address(), token, "50", str(load.clients), *load.bundle]
        output(warm)
        return Run.read(output([*warm[:4], str(load.count), *warm[5:]]))


def ray(interpreter: str, folder: Path, load: Load) -> Run:
    """The same under Ray."""
    folder.mkdir()
    env = measure.plain_env() | {"TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    words = [str(load.count), str(load.clients), *load.bundle, str(folder)]
    try:
        return Run.read(output([interpreter, str(HERE / "ray_groups.py"), *words], env))
    finally:
        measure.end_all(str(folder))


@dataclasses.dataclass
class Side:
    """All rounds of one side."""

    creates: list[Run] = dataclasses.field(default_factory=list)
    one: list[Run] = dataclasses.field(default_factory=list)
    many: list[Run] = dataclasses.field(default_factory=list)


def rows(floors: list[Run], https: list[Run], mine: Side, theirs: Side) -> list[Row]:
    """The rows of all rounds; https are the floors of many clients."""
    found = []
    for name, q, reach in (("create p50", 0.5, 1.5), ("create p99", 0.99, 10)):
        values, peer = [r.quantile(q) for r in mine.creates], [r.quantile(q) for r in theirs.creates]
        floor = measure.median([r.quantile(q) for r in floors])
        bound = Reach("<=", reach)
        found.append(
            Row(name, "ms", measure.median(values), values, bound, measure.median(peer), peer, floor)
        )
    for name, runs, peers, least, bare in (
        ("cycles, one", mine.one, theirs.one, 500, floors),
        (f"cycles, {CLIENTS}", mine.many, theirs.many, 5000, https),
    ):
        values, peer = [r.rate for r in runs], [r.rate for r in peers]
        bound, floor = Reach(">=", least), measure.median([r.rate for r in bare])
        found.append(
            Row(name, "per s", measure.median(values), values, bound, measure.median(peer), peer, floor)
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-ray", action="store_true", help="leave the peer out")
    parser.add_argument("--troupe", type=Path, default=measure.TROUPE)
    args = parser.parse_args()
    floors: list[Run] = []
    https: list[Run] = []
    mine, theirs = Side(), Side()
    try:
        if args.rounds < 1:
            raise BenchError("--rounds: at least 1")
        about = measure.machine(args.troupe)
        say(measure.machine_text(about), f"{args.rounds} rounds of {CYCLES} cycles and more")
        interpreter = "" if args.no_ray else ray_peer.python()
        with measure.workplace() as folder, contextlib.chdir(measure.ROOT):
            measure.on_disk(folder)
            client = folder / "pg"
            output(["go", "build", "-trimpath", "-o", str(client), "./bench/pg"])
            for i in range(args.rounds):
                place = folder / str(i)
                place.mkdir()
                floors.append(Run.read(output([str(client), "floor", str(place), str(CYCLES)])))
                https.append(Run.read(output([str(client), "http", str(MANY.count), str(CLIENTS)])))
                for runs, name, load in (
                    (mine.creates, "creates", CREATES),
                    (mine.one, "one", ONE),
                    (mine.many, "many", MANY),
                ):
                    runs.append(ours(args.troupe, client, place / name, load))
                rates = f"{mine.one[-1].rate:.0f}/s alone, {mine.many[-1].rate:.0f}/s of {CLIENTS}"
                least = f"disk {floors[-1].rate:.0f}/s, HTTP {https[-1].rate:.0f}/s"
                say(f"  round {i + 1}: {rates}; floors: {least}")
                if not interpreter:
                    continue
                for runs, name, load in (
                    (theirs.creates, "ray-creates", dataclasses.replace(CREATES, count=RAY_CREATES)),
                    (theirs.one, "ray-one", dataclasses.replace(ONE, count=RAY_CYCLES)),
                    (theirs.many, "ray-many", dataclasses.replace(MANY, count=RAY_CYCLES)),
                ):
                    runs.append(ray(interpreter, place / name, load))
        measure.finish("pg", about, rows(floors, https, mine, theirs), rounds=args.rounds)
    except (BenchError, subprocess.TimeoutExpired) as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
