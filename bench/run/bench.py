"""Times `troupe run --ranks 4 -- true`, from the exec of the command to its end.

The cluster is up. The command submits the job, is told of its placement, the agent starts
a shim and the shim four processes, all end, and their end is in the log before the
command returns. Nothing is left out and nothing is kept from one run to the next.

Exit code: 0 when everything was measured, 1 when a run failed, 130 when interrupted. A
missed figure is printed, not an error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from measure import BenchError, Cluster, Reach, Row, Value, say

WARM_UP = 3
COMMAND = ("run", "--ranks", "4", "--", "true")


def timed(cluster: Cluster) -> float:
    """Milliseconds of one run."""
    begin = time.monotonic()
    cluster.command(*COMMAND)
    return (time.monotonic() - begin) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=None, help="runs (default BENCH_TRIALS, else 30)")
    parser.add_argument("--troupe", type=Path, default=measure.TROUPE)
    args = parser.parse_args()
    runs: list[Value] = []
    try:
        args.trials = measure.trials(30) if args.trials is None else args.trials
        if args.trials < 1:
            raise BenchError("--trials: at least 1")
        about = measure.machine(args.troupe)
        say(measure.machine_text(about), f"{args.trials} runs after {WARM_UP} to warm up")
        with measure.workplace() as folder, measure.cluster_up(args.troupe, folder) as cluster:
            warm = [timed(cluster) for _ in range(WARM_UP)]
            runs += [timed(cluster) for _ in range(args.trials)]
        found = measure.known(runs)
        say(
            f"  min {min(found):.0f}, median {measure.median(runs):.0f}, "
            f"p99 {measure.quantile(found, 0.99):.0f}, max {max(found):.0f} ms"
        )
        row = Row(
            row="run of 4 x true, end to end",
            unit="ms",
            ours=measure.median(runs),
            ours_runs=runs,
            reach=Reach("<=", 150),
        )
        measure.finish("run", about, [row], warmUp=warm)
    except (BenchError, subprocess.TimeoutExpired) as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
