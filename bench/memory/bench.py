"""Weighs the idle head and agent, a shim, and the binary.

`troupe up` (head and agent in one process) is read a minute after its start, with no job;
then four ranks that only sleep are started and their shim is read. RSS and PSS come from
smaps_rollup. MB are millions of bytes. Every trial is a new cluster.

Exit code: 0 when everything was measured, 1 when not, 130 when interrupted. A missed
figure is printed, not an error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from measure import BenchError, Reach, Row, Value, say

MB = 1e6
SHIM_SETTLE = 5.0  # seconds from "all ranks run" to reading their shim


def weigh(pid: int) -> dict[str, float]:
    """Resident and proportional size of a process in MB, and what of it is anonymous."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError as e:
        raise BenchError(f"read the memory of process {pid}: {e}") from e
    kib = {name: int(rest.split()[0]) for name, _, rest in (s.partition(":") for s in lines)}
    return {k.lower(): kib[k] * 1024 / MB for k in ("Rss", "Pss", "Anonymous")}


def shims(folder: Path) -> list[int]:
    """The shims of a cluster: a binary without one starts itself, so only the words count."""
    return [
        p for p in measure.marked(str(folder)) if any(w.endswith("shim.json") for w in measure.words(p)[1:])
    ]


def trial(binary: Path, folder: Path, settle: float) -> tuple[dict[str, float], list[dict[str, float]]]:
    """What one cluster weighs, idle, and what its shim does with four ranks that sleep."""
    folder.mkdir()
    with measure.cluster_up(binary, folder) as cluster:
        up = [p for p in measure.marked(str(folder)) if "up" in measure.words(p)[1:2]]
        if len(up) != 1:
            raise BenchError(f"{len(up)} processes of `troupe up`, want 1")
        time.sleep(settle)
        idle = weigh(up[0])
        out = cluster.command("run", "--detach", "--ranks", "4", "-o", "json", "--", "sleep", "600")
        job = json.loads(out)["id"]
        deadline = time.monotonic() + 30
        while (state := json.loads(cluster.command("job", "get", job, "-o", "json"))["state"]) != "RUNNING":
            if time.monotonic() > deadline:
                raise BenchError(f"{job} is {state}: {cluster.command('why', job).strip()}")
            time.sleep(0.1)
        time.sleep(SHIM_SETTLE)
        found = shims(folder)
        if not found:
            raise BenchError(f"{job} runs, but no shim was found")
        return idle, [weigh(p) for p in found]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=3, help="clusters to weigh, one after the other")
    parser.add_argument("--settle", type=float, default=60, help="seconds from the start to the reading")
    parser.add_argument("--troupe", type=Path, default=measure.TROUPE)
    args = parser.parse_args()
    idle: list[dict[str, float]] = []
    shim: list[dict[str, float]] = []
    try:
        about = measure.machine(args.troupe)
        say(measure.machine_text(about), f"{args.trials} clusters, each idle for {args.settle:.0f} s")
        with measure.workplace() as folder:
            for i in range(args.trials):
                head, weights = trial(args.troupe, folder / str(i), args.settle)
                idle.append(head)
                shim += weights
                parts = [("head and agent", head), *(("shim", w) for w in weights)]
                for name, w in parts:
                    say(
                        f"  {i + 1:3} {name}: RSS {w['rss']:.1f} MB, PSS {w['pss']:.1f} MB, "
                        f"anonymous {w['anonymous']:.1f} MB"
                    )
        size = args.troupe.stat().st_size / MB

        def row(name: str, runs: list[Value], limit: float) -> Row:
            return Row(
                row=name, unit="MB", ours=measure.median(runs), ours_runs=runs, reach=Reach("<=", limit)
            )

        rows = [
            row("head and agent idle", [w["rss"] for w in idle], 80),
            row("shim", [w["rss"] for w in shim], 8),
            row("binary", [size], 60),
        ]
        measure.finish("memory", about, rows, settle=args.settle, headAndAgent=idle, shim=shim)
    except (BenchError, subprocess.TimeoutExpired) as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
