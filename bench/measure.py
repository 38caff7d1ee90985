"""What the benchmarks share: a folder with its processes, a cluster, rows and tables.

Only the standard library. What is measured, and how, belongs to the scripts beside this
file; nothing here knows of a row's name. Each script works in one temporary folder, and
every process it starts carries that folder's path in its environment or its command, so
that at the end, an interrupted one too, whatever is left can be found and ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
TROUPE = ROOT / "bin" / "troupe"

# One measured value, or None for a trial that gave none: it is kept, not dropped.
Value = float | None


class BenchError(Exception):
    """The benchmark cannot go on; the text says what happened and to what."""


# The folder and its processes.


def pids() -> list[int]:
    """Every process number."""
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def words(pid: int) -> list[str]:
    """The command line of a process; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [w.decode(errors="replace") for w in raw.split(b"\0") if w]


def marked(mark: str) -> list[int]:
    """Living processes that carry a mark in their environment or command line.

    A zombie is not alive: it holds nothing but its number.
    """
    needle, found = mark.encode(), []
    for pid in pids():
        if pid == os.getpid():
            continue
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            text = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if state not in "ZX" and needle in text:
            found.append(pid)
    return found


def environ(pid: int) -> bytes:
    """The environment that a process was started with; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def pss(pid: int) -> int:
    """Proportional set size in bytes: what is shared counts in parts; 0 when it is gone."""
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss")


def rss(pid: int) -> int:
    """Resident set size in bytes; 0 when it is gone."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmRSS")


def _kilobytes(path: Path, name: str) -> int:
    try:
        return int(_values(path, name)[0].split()[0]) * 1024
    except (OSError, IndexError):
        return 0


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder; at the end every process that carries its path, and it, are gone."""
    folder = Path(tempfile.mkdtemp(prefix="troupe-bench-"))
    # A plain SIGTERM would end Python without the clearing up below; and a shell starts
    # what it puts in the background with SIGINT ignored, which children would inherit.
    old = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, _terminated),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        yield folder
    finally:
        # A second Ctrl-C must not leave half of it behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all(str(folder))
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in old.items():
            signal.signal(number, handler)


def end_all(mark: str, limit: float = 10) -> list[int]:
    """Kills every process with a mark until none is left; returns those it had to kill."""
    killed: list[int] = []
    deadline = time.monotonic() + limit
    while left := marked(mark):
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed += [pid for pid in left if pid not in killed]
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return killed


# What some installations of torch need, beyond what ranks get by default.
PASSED = ("LD_LIBRARY_PATH", "PYTHONPATH")


def plain_env() -> dict[str, str]:
    """What a node gives its ranks by default, and so what both sides are started with."""
    names = ("PATH", "HOME", "LANG", "TZ", *PASSED)
    return {k: os.environ[k] for k in names if k in os.environ}


class Cluster:
    """A cluster of its own in a folder, driven through the command line, shipped defaults."""

    def __init__(self, binary: Path, folder: Path) -> None:
        if not binary.is_file():
            raise BenchError(f"{binary} is not there: run `make build`, or give --troupe")
        self.binary, self.state = binary.resolve(), folder / "state"
        # A configuration folder of its own: the user's contexts stay as they are, and no
        # variable may point these commands at another cluster.
        self.env = plain_env() | {"XDG_CONFIG_HOME": str(folder / "config")}

    def argv(self, *args: str) -> list[str]:
        """A command of this cluster."""
        return [str(self.binary), *args]

    def command(self, *args: str, timeout: float = 60) -> str:
        """Runs one command and returns what it printed; a failure carries its words."""
        done = subprocess.run(
            self.argv(*args), check=False, env=self.env, capture_output=True, text=True, timeout=timeout
        )
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            raise BenchError(f"`troupe {' '.join(args[:2])} …` ended with {done.returncode}: {said}")
        return done.stdout

    def up(self, *flags: str) -> None:
        """Starts head and agent in the background; returns when they serve."""
        self.command("up", "-d", "--state", str(self.state), "--port", "0", *flags)

    def address(self) -> str:
        """Where its API is."""
        found = json.loads((self.state / "up.json").read_text())["api"]
        if not isinstance(found, str):
            raise BenchError(f"{self.state}/up.json names no address")
        return found

    def down(self) -> None:
        """Ends them and what they run."""
        self.command("down", "--state", str(self.state), "--yes")


@contextlib.contextmanager
def cluster_up(binary: Path, folder: Path, *flags: str) -> Iterator[Cluster]:
    """A cluster that serves; afterwards nothing with the folder's path is left."""
    cluster = Cluster(binary, folder)
    try:
        cluster.up(*flags)
        yield cluster
    except BaseException:
        # Its own way down removes control groups too, which a SIGKILL leaves.
        with contextlib.suppress(BenchError, subprocess.TimeoutExpired):
            cluster.down()
        raise
    else:
        cluster.down()
    finally:
        end_all(str(folder))


def on_disk(folder: Path) -> None:
    """Refuses memory as a disk."""
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, name, *_ = line.split()
        if folder.is_relative_to(where) and len(where) >= len(best):
            best, kind = where, name
    if kind in ("tmpfs", "ramfs"):
        raise BenchError(f"{folder} is on {kind}: set TMPDIR to a folder on a disk")


def tail(path: Path, size: int = 1500) -> str:
    """The end of a log, for an error."""
    try:
        return path.read_text(errors="replace")[-size:]
    except OSError:
        return ""


# Numbers.


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that is at least as large as the share q of all of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def known(values: Sequence[Value]) -> list[float]:
    """The values that were measured."""
    return [v for v in values if v is not None]


def median(values: Sequence[Value]) -> Value:
    """The median of what was measured, None when nothing was."""
    found = known(values)
    return statistics.median(found) if found else None


@dataclasses.dataclass(frozen=True)
class Reach:
    """What a row has to reach: op is "<=" or ">=".

    With of "peer" or "floor" it bounds the ratio to it; with None it bounds our own figure.
    """

    op: str
    value: float
    of: str | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure with every single value behind it."""

    row: str
    unit: str
    ours: Value
    ours_runs: Sequence[Value]
    reach: Reach
    peer: Value = None
    peer_runs: Sequence[Value] = ()
    floor: Value = None

    @property
    def ratio(self) -> Value:
        """Ours ÷ peer; None without a peer, or with one that is zero."""
        return self.ours / self.peer if self.ours is not None and self.peer else None

    @property
    def reached(self) -> bool | None:
        """Whether the row reaches what it has to; None when it was not measured."""
        figure = self.ours
        if self.reach.of == "peer":
            figure = self.ratio
        elif self.reach.of == "floor":
            figure = self.ours / self.floor if self.ours is not None and self.floor else None
        if figure is None:
            return None
        return figure <= self.reach.value if self.reach.op == "<=" else figure >= self.reach.value

    def record(self) -> dict[str, Any]:
        """The row as it is written."""
        return {
            "row": self.row,
            "unit": self.unit,
            "ours": self.ours,
            "peer": self.peer,
            "floor": self.floor,
            "ratio": self.ratio,
            "reach": dataclasses.asdict(self.reach),
            "runs": {"ours": list(self.ours_runs), "peer": list(self.peer_runs)},
        }

    @classmethod
    def read(cls, r: dict[str, Any]) -> Row:
        """A row that was written."""
        return cls(
            row=r["row"],
            unit=r["unit"],
            ours=r["ours"],
            ours_runs=r["runs"]["ours"],
            reach=Reach(**r["reach"]),
            peer=r["peer"],
            peer_runs=r["runs"]["peer"],
            floor=r["floor"],
        )


# Results.


def _values(path: Path, name: str) -> list[str]:
    """What follows a name in a file of `name: value` lines."""
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def machine(binary: Path | None = None) -> dict[str, Any]:
    """What the figures depend on: hardware, kernel, versions, and how busy it was."""
    models = _values(Path("/proc/cpuinfo"), "model name")
    memory = int(_values(Path("/proc/meminfo"), "MemTotal")[0].split()[0])
    about: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "memoryGiB": round(memory / (1 << 20), 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": None,
        "troupe": None,
        "loadBefore": round(os.getloadavg()[0], 2),
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        about["torch"] = metadata.version("torch")
    if binary is not None:
        done = subprocess.run([str(binary), "version"], check=False, capture_output=True, text=True)
        about["troupe"] = done.stdout.strip() or None
    return about


def machine_text(about: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{about['cores']} cores ({about['cpu']}), {about['memoryGiB']} GiB, {about['kernel']}, "
        f"Python {about['python']}, torch {about['torch']}, {about['troupe']}; "
        f"load before {about['loadBefore']}"
    )


def figure(value: Value) -> str:
    """A number for people."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def spread(values: Sequence[Value]) -> str:
    """Smallest and largest of more than one value, and how many."""
    found = known(values)
    if len(found) < 2:
        return f"n={len(found)}"
    return f"{figure(min(found))} to {figure(max(found))}, n={len(found)}"


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as a Markdown table, aligned so that a terminal shows it well too."""
    lines = [["row", "ours", "(all)", "peer", "(all)", "ours ÷ peer", "floor", "reach", ""]]
    for r in rows:
        of = f" x {r.reach.of}" if r.reach.of else f" {r.unit}"
        lines.append(
            [
                r.row,
                f"{figure(r.ours)} {r.unit}",
                spread(r.ours_runs),
                f"{figure(r.peer)} {r.unit}" if r.peer is not None else "-",
                spread(r.peer_runs) if r.peer_runs else "-",
                figure(r.ratio),
                figure(r.floor),
                f"{r.reach.op} {figure(r.reach.value)}{of}",
                {True: "reached", False: "MISSED", None: "not measured"}[r.reached],
            ]
        )
    widths = [max(len(x[i]) for x in lines) for i in range(len(lines[0]))]
    text = ["| " + " | ".join(c.ljust(w) for c, w in zip(x, widths, strict=True)) + " |" for x in lines]
    return [text[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *text[1:]]


def finish(name: str, about: dict[str, Any], rows: Sequence[Row], **more: Any) -> None:
    """Writes bench/results/NAME.json and prints the table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = {"name": name, "taken": taken, "machine": about, "rows": [r.record() for r in rows], **more}
    path = RESULTS / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    part.replace(path)
    say("", machine_text(about), "", *table(rows), "", f"every value: {path.relative_to(ROOT)}")


def say(*lines: str) -> None:
    """Prints lines at once: a benchmark is watched while it runs."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def trials(default: int) -> int:
    """The number of trials: BENCH_TRIALS, else the default."""
    text = os.environ.get("BENCH_TRIALS", "")
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise BenchError(f"BENCH_TRIALS is {text!r}: want a number from 1 on")
    return int(text)
