"""Placement groups of four bundles: create, ready, remove, through a head that makes each
durable, beside Ray.

Ours is the Go SDK in a process of its own against the HTTP API of `troupe up`, a head with
one voter whose log lies on a disk (a file system in memory is refused), shipped defaults.
A cycle is a create that is acknowledged after its commit, the group ready, and a remove
that is acknowledged. Ray keeps its groups in memory. The floor is two entries of a plain
file, each synced, which is what durability costs by itself on this disk.

Rounds: floor, ours and Ray in turn; a round is whole or does not count.

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
from measure import BenchError, Reach, Row, Value, say

HERE = Path(__file__).resolve().parent
LIMIT = 600.0  # seconds of one run
CYCLES, MANY = 2000, 10_000  # of ours with one client and with 64
RAY_CYCLES = 300
CLIENTS = 64
# One device for each bundle, and with 64 clients bundles that all fit at once.
ALONE, TOGETHER = ("100", "1"), ("2", "0")  # thousandths of a CPU, devices
DEVICES = "fake:8x80GiB"


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
        raise BenchError(f"`{Path(argv[0]).name} {argv[1]}` ended with {done.returncode}: {done.stderr[-1500:].strip()}")
    return done.stdout


def ours(binary: Path, client: Path, folder: Path, count: int, clients: int, bundle: tuple[str, str]) -> Run:
    """One run of ours on a cluster of its own."""
    folder.mkdir()
    with measure.cluster_up(binary, folder, "--gpus", DEVICES) as cluster:
        token = str(cluster.state / "head" / "admin.token")
        warm = [str(client), "cycles", cluster.address(), token, "50", str(clients), *bundle]
        output(warm)
        return Run.read(output([*warm[:4], str(count), *warm[5:]]))


def ray(interpreter: str, folder: Path, count: int, clients: int, bundle: tuple[str, str]) -> Run:
    """The same under Ray."""
    folder.mkdir()
    env = measure.plain_env() | {"TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        return Run.read(output([interpreter, str(HERE / "ray_groups.py"), str(count), str(clients), *bundle, str(folder)], env))
    finally:
        measure.end_all(str(folder))


def rows(floors: list[Run], one: list[Run], many: list[Run], ray_one: list[Run], ray_many: list[Run]) -> list[Row]:
    """The rows of all rounds."""

    def row(name: str, unit: str, reach: Reach, mine: list[float], theirs: list[float], floor: Value) -> Row:
        return Row(
            row=name, unit=unit, ours=measure.median(mine), ours_runs=mine, reach=reach,
            peer=measure.median(theirs), peer_runs=theirs, floor=floor,
        )

    def each(runs: list[Run], q: float) -> list[float]:
        return [r.quantile(q) for r in runs]

    def rates(runs: list[Run]) -> list[float]:
        return [r.rate for r in runs]

    bare = measure.median(rates(floors))
    return [
        row("create p50", "ms", Reach("<=", 1.5), each(one, 0.5), each(ray_one, 0.5), measure.median(each(floors, 0.5))),
        row("create p99", "ms", Reach("<=", 10), each(one, 0.99), each(ray_one, 0.99), measure.median(each(floors, 0.99))),
        row("cycles, one", "per s", Reach(">=", 500), rates(one), rates(ray_one), bare),
        row("cycles, 64", "per s", Reach(">=", 5000), rates(many), rates(ray_many), bare),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-ray", action="store_true", help="leave the peer out")
    parser.add_argument("--troupe", type=Path, default=measure.TROUPE)
    args = parser.parse_args()
    floors: list[Run] = []
    one: list[Run] = []
    many: list[Run] = []
    ray_one: list[Run] = []
    ray_many: list[Run] = []
    try:
        if args.rounds < 1:
            raise BenchError("--rounds: at least 1")
        about = measure.machine(args.troupe)
        say(measure.machine_text(about), f"{args.rounds} rounds of {CYCLES} cycles, one client, and {MANY}, {CLIENTS} clients")
        interpreter = "" if args.no_ray else ray_peer.python()
        with measure.workplace() as folder, contextlib.chdir(measure.ROOT):
            measure.on_disk(folder)
            client = folder / "pg"
            output(["go", "build", "-trimpath", "-o", str(client), "./bench/pg"])
            for i in range(args.rounds):
                place = folder / str(i)
                place.mkdir()
                floors.append(Run.read(output([str(client), "floor", str(place), str(CYCLES)])))
                one.append(ours(args.troupe, client, place / "one", CYCLES, 1, ALONE))
                many.append(ours(args.troupe, client, place / "many", MANY, CLIENTS, TOGETHER))
                if interpreter:
                    ray_one.append(ray(interpreter, place / "ray-one", RAY_CYCLES, 1, ALONE))
                    ray_many.append(ray(interpreter, place / "ray-many", RAY_CYCLES, CLIENTS, TOGETHER))
                say(f"  round {i + 1}: one client {one[-1].rate:.0f}/s, {CLIENTS} clients {many[-1].rate:.0f}/s, floor {floors[-1].rate:.0f}/s")
        measure.finish("pg", about, rows(floors, one, many, ray_one, ray_many), rounds=args.rounds)
    except (BenchError, subprocess.TimeoutExpired) as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
