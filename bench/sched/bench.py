"""Measures the scheduler on one core: what the openb traces get placed, and a full cluster.

The scheduler runs in a program of its own (`bench/sched/*.go`), without a head and with
shipped defaults. Times are processor time, so that what else the machine does is left out:
of the thread that decides, which whoever waits for a decision waits for, and of the whole
program, in which the garbage collector runs beside it on the same core. Reasons are timed
apart: they are made when somebody asks, not when something is decided. With the figures as
they are it takes about a quarter of an hour on a quiet machine;
`--nodes 1000 --seeds 1 --events 200 --waiting 1000` is a minute.

Exit code: 0 when everything was measured, 1 when not, 130 when interrupted; what was
measured before is kept. A missed figure is printed, not an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from measure import BenchError, Reach, Row, Value, say

WORKLOADS = {"default": 95.39, "multigpu50": 97.18, "gpuspec33": 94.55}  # published means of FGD
SLACK = 0.2
FULL = 10_000  # the size without a name of its own


def call(program: Path, *args: str) -> dict[str, Any]:
    """One run of the program on one core."""
    done = subprocess.run(
        [program, *args], env={**os.environ, "GOMAXPROCS": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"sched {' '.join(args)}: {done.stderr.strip()}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def openb(program: Path, data: Path, workload: str, seeds: int) -> list[Row]:
    """The row of one workload: the mean over the seeds."""
    published = WORKLOADS[workload]
    runs: list[Value] = [
        call(program, "openb", str(data), workload, str(seed))["allocated"] for seed in range(1, seeds + 1)
    ]
    mean = sum(measure.known(runs)) / len(runs)
    say(f"  openb {workload}: {mean:.2f} %, published {published} %")
    return [
        Row(
            row=f"openb {workload}",
            unit="%",
            ours=mean,
            ours_runs=runs,
            reach=Reach(">=", published - SLACK),
            floor=published,
        )
    ]


def full(program: Path, data: Path, nodes: int, args: argparse.Namespace) -> list[Row]:
    """The rows of one size of cluster."""
    got = call(program, "full", str(data), str(nodes), str(args.waiting), str(args.events), "1")
    name = "" if nodes == FULL else f" at {nodes} nodes"
    say(
        f"  {nodes} nodes: {got['ranksPerSecond']:.0f} ranks/s, decision p50 {got['p50']:.1f} ms, "
        f"p99 {got['p99']:.1f} ms, {got['memory']:.0f} MB; in the thread that decides "
        f"{got['threadP50']:.1f} and {got['threadP99']:.1f} ms, on the wall {got['wallP50']:.1f} and "
        f"{got['wallP99']:.1f} ms; the reasons of one {got['whyP50']:.1f} and {got['whyP99']:.1f} ms; "
        f"{got['waiting']} gangs wait, "
        f"{got['byCountAlone']:.0f} % of them would fit by count alone, {got['placed']} were placed in "
        f"{args.events} events; {got['idleTried']} placements were looked for when nothing had changed"
    )
    rows = [
        Row(
            row="ranks placed per second" + name,
            unit="per s",
            ours=got["ranksPerSecond"],
            ours_runs=[got["ranksPerSecond"]],
            reach=Reach(">=", 5000),
        ),
        Row(
            row="decision p99" + name,
            unit="ms",
            ours=got["threadP99"],
            ours_runs=got["thread"],
            reach=Reach("<=", 20),
        ),
        Row(
            row="decision p99 with the collector" + name,
            unit="ms",
            ours=got["p99"],
            ours_runs=got["decisions"],
            reach=Reach("<=", 20),
        ),
    ]
    if nodes == FULL:
        rows.append(
            Row(
                row="memory",
                unit="MB",
                ours=got["memory"],
                ours_runs=[got["memory"]],
                reach=Reach("<=", 1000),
            )
        )
    return rows


def play(troupe: Path, *args: str) -> tuple[dict[str, Any], float]:
    """One trace played by the simulator on one core: its report, and processor seconds."""
    before = os.times()
    done = subprocess.run(
        [troupe, "simulate", *args, "-o", "json"],
        env={**os.environ, "GOMAXPROCS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"simulate {' '.join(args)}: {done.stderr.strip()}")
    after = os.times()
    took = after.children_user + after.children_system - before.children_user - before.children_system
    return json.loads(done.stdout), took


def philly(troupe: Path, traces: Path) -> list[Row]:
    """The row of the whole Philly trace, with topology, quotas and reasons."""
    cluster = str(Path(__file__).with_name("philly.yaml"))
    report, took = play(troupe, "--cluster", cluster, "--trace", str(traces / "philly_sia.csv"))
    say(f"  philly: {report['jobs']} jobs, {report['finished']} finished, in {took:.1f} s of processor time")
    return [Row(row="philly simulated", unit="s", ours=took, ours_runs=[took], reach=Reach("<=", 30))]


def deadlines(troupe: Path, traces: Path) -> list[Row]:
    """The row of deadlines met with sizes as the head chooses them, beside sizes as asked for."""
    trace = ("--trace", str(traces / "elasticflow_philly_103959.csv"))
    elastic = ("--cluster", str(Path(__file__).with_name("elasticflow.yaml")), "--estimates", "exact")
    met = {}
    for name, args in {"fixed": ("--cluster", "16x8", "--policy", "edf"), "chosen": elastic}.items():
        got, _ = play(troupe, *trace, *args)
        met[name] = 100 * (got["deadlines"] - got["deadlinesMissed"]) / got["deadlines"]
    say(f"  deadlines met: {met['chosen']:.1f} % with sizes chosen, with fixed ones {met['fixed']:.1f} %")
    return [
        Row(
            row="deadlines met",
            unit="%",
            ours=met["chosen"],
            ours_runs=[met["chosen"]],
            floor=met["fixed"],
            reach=Reach(">=", met["fixed"] + 10),
        )
    ]


def measured(parts: list[Callable[[], list[Row]]]) -> tuple[list[Row], int]:
    """The rows of all parts that could be measured, and how many could not."""
    rows: list[Row] = []
    failed = 0
    for part in parts:
        try:
            rows += part()
        except BenchError as e:
            failed += 1
            sys.stderr.write(f"error: {e}\n")
    return rows, failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="draws of each openb workload")
    parser.add_argument(
        "--nodes", type=int, nargs="*", default=[1000, 5000, FULL, 50_000], help="sizes of cluster"
    )
    parser.add_argument("--waiting", type=int, default=10_000, help="gangs that wait")
    parser.add_argument("--events", type=int, default=2000, help="decisions that are timed")
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "testdata")
    args = parser.parse_args()
    try:
        with measure.workplace() as folder:
            program = folder / "sched"
            subprocess.run(["go", "build", "-o", program, "./bench/sched"], cwd=measure.ROOT, check=True)
            about = measure.machine()
            say(measure.machine_text(about))
            parts = [partial(openb, program, args.data, workload, args.seeds) for workload in WORKLOADS]
            parts += [partial(full, program, args.data, nodes, args) for nodes in args.nodes]
            if traces := os.environ.get("TROUPE_TRACES"):
                troupe = folder / "troupe"
                subprocess.run(["go", "build", "-o", troupe, "./cmd/troupe"], cwd=measure.ROOT, check=True)
                parts += [partial(philly, troupe, Path(traces)), partial(deadlines, troupe, Path(traces))]
            else:
                say("  no folder of public traces in TROUPE_TRACES: philly and deadlines are left out")
            rows, failed = measured(parts)
        measure.finish("sched", about, rows, events=args.events, waiting=args.waiting)
        if failed:
            raise BenchError(f"{failed} of {len(parts)} parts could not be measured; the others are kept")
    except (BenchError, subprocess.CalledProcessError) as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
