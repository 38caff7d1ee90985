"""What a checkpoint costs: asynchronous against a copy, synchronous against torch.save.

Two ranks with 1 GiB of float32 each, on a file system with a disk behind it. Every way
takes its turn within one job, so that both sides of a pair find the same machine.

Exit code: 0 when everything was measured, 1 when not, 130 when interrupted. A missed
figure is printed, not an error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from measure import BenchError, Reach, Row, say

HERE = Path(__file__).resolve().parent
RANKS = 2
NEEDED = 8  # times the state of a rank: memory of both, twice, and the disk's files


def parse() -> argparse.Namespace:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=None, help="pairs (default BENCH_TRIALS, else 10)")
    parser.add_argument("--mebibytes", type=int, default=1024, help="of float32, for each rank")
    parser.add_argument("--step-time", type=float, default=0.05, help="seconds the device takes in a step")
    parser.add_argument("--troupe", type=Path, default=measure.TROUPE)
    return parser.parse_args()


def lines(folder: Path) -> list[dict[str, Any]]:
    """What every rank measured."""
    found = []
    for rank in range(RANKS):
        path = folder / f"rank-{rank}.jsonl"
        for text in path.read_text().splitlines():
            found.append({"rank": rank, **json.loads(text)})
    return found


def worst(found: list[dict[str, Any]], what: str, key: str, trials: int) -> list[measure.Value]:
    """For each trial the value of the rank that took longest: it is who training waits for."""
    values: list[measure.Value] = []
    for trial in range(trials):
        of = [line[key] for line in found if line["what"] == what and line["trial"] == trial]
        values.append(max(of) if len(of) == RANKS else None)
    return values


def rows(found: list[dict[str, Any]], trials: int) -> list[Row]:
    """The rows of the table."""
    stall, copy = worst(found, "async", "stall", trials), worst(found, "copy", "took", trials)
    sync, theirs = worst(found, "sync", "took", trials), worst(found, "torch", "took", trials)
    hashed = worst(found, "sync", "hash", trials)
    share = [100 * h / s if h is not None and s else None for h, s in zip(hashed, sync, strict=True)]
    report = [line["microseconds"] for line in found if line["what"] == "report"]

    def row(name: str, unit: str, ours: list[Any], reach: Reach, peer: list[Any] | None = None) -> Row:
        return Row(
            name,
            unit,
            measure.median(ours),
            ours,
            reach,
            measure.median(peer) if peer else None,
            peer or [],
        )

    return [
        row("async save stall", "s", stall, Reach("<=", 1.2, "peer"), copy),
        row("sync save", "s", sync, Reach("<=", 1.1, "peer"), theirs),
        row("hash share", "%", share, Reach("<=", 15)),
        row("step report", "us", report, Reach("<=", 2)),
    ]


def main() -> int:
    """Runs one job and reads what its ranks wrote."""
    args = parse()
    args.trials = measure.trials(10) if args.trials is None else args.trials
    if args.trials < 1 or args.mebibytes < 1:
        raise BenchError("--trials and --mebibytes: at least 1")
    about = measure.machine(args.troupe)
    size = args.mebibytes << 20
    with measure.workplace() as folder:
        measure.on_disk(folder)
        if shutil.disk_usage(folder).free < NEEDED * size:
            raise BenchError(f"{folder} has less than {NEEDED * size >> 20} MiB free")
        out, store = folder / "out", folder / "store"
        out.mkdir()
        store.mkdir()
        with measure.cluster_up(args.troupe, folder) as cluster:
            say(f"{args.trials} trials, {RANKS} ranks with {args.mebibytes} MiB each")
            cluster.command(
                *("run", "--ranks", str(RANKS), "--max-restarts", "0", "--keep-last", "1"),
                *("--checkpoint-store", str(store), "--env", f"PYTHONPATH={measure.ROOT / 'sdk' / 'python'}"),
                *(v for n in measure.PASSED if n in cluster.env and n != "PYTHONPATH" for v in ("--env", n)),
                *(
                    "--",
                    sys.executable,
                    str(HERE / "rank.py"),
                    "--bytes",
                    str(size),
                    "--trials",
                    str(args.trials),
                ),
                *("--step-time", str(args.step_time), "--out", str(out), "--store", str(store)),
                timeout=120 + 60 * args.trials,
            )
        found = lines(out)
    result = rows(found, args.trials)
    failed = [f"{r.row}: a trial gave no value" for r in result if None in r.ours_runs]
    measure.finish("checkpoint", about, result, failed=failed, every=found)
    return int(bool(failed))


if __name__ == "__main__":
    try:
        code = main()
    except (BenchError, OSError, subprocess.TimeoutExpired) as e:
        sys.stderr.write(f"error: {e}\n")
        code = 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been ended\n")
        code = 130
    sys.exit(code)
