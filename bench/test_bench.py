"""Tests of what decides over a figure: the reader of events, and the arithmetic of rows."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "recovery"))

import events
import measure
import nodes
from measure import Reach, Row

Event = dict[str, Any]


def whole() -> list[Event]:
    """The events of a whole trial: attempt a starts at 10 a and its rank r steps at 10 a + r."""
    rows: list[Event] = []
    for attempt in events.ATTEMPTS:
        for rank in range(events.WORLD_SIZE):
            common = {"rank": rank, "attempt": attempt}
            more = {"world": 4, "threads": 1, "import_s": 2.0, "join_s": 0.5}
            rows.append({"t": 10.0 * attempt, "event": "up", **common, **more})
            rows.append({"t": 10.0 * attempt + rank, "event": "first_step", **common})
            if attempt == events.ATTEMPTS[-1]:
                rows.append({"t": 10.0 * attempt + 9, "event": "done", **common})
        if attempt in events.KILLED:
            rows.append({"t": 10.0 * attempt + 5, "event": "kill", "rank": 1, "attempt": attempt})
    return rows


def written(folder: Path, rows: list[Event]) -> Path:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_times_run_to_the_last_rank(tmp_path: Path) -> None:
    t = events.read(written(tmp_path, whole()))
    assert t.first == (3.0, 13.0, 23.0)
    assert t.submit_to_first(-1.0) == 4.0
    assert t.kill_to_first() == [8.0, 8.0]
    assert t.threads == 1


def lacks(event: str, attempt: int, rank: int) -> Callable[[list[Event]], list[Event]]:
    """Takes one event away."""

    def change(rows: list[Event]) -> list[Event]:
        left = [r for r in rows if (r["event"], r["attempt"], r["rank"]) != (event, attempt, rank)]
        assert len(left) == len(rows) - 1
        return left

    return change


def alters(event: str, attempt: int, rank: int, /, **values: object) -> Callable[[list[Event]], list[Event]]:
    """Changes one event."""

    def change(rows: list[Event]) -> list[Event]:
        hit = [r for r in rows if (r["event"], r["attempt"], r["rank"]) == (event, attempt, rank)]
        assert len(hit) == 1
        hit[0].update(values)
        return rows

    return change


def adds(**event: object) -> Callable[[list[Event]], list[Event]]:
    """Adds one event."""
    return lambda rows: [*rows, event]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: [], "up of attempt 0"),
        (lacks("first_step", 1, 3), "first_step of attempt 1"),
        (lacks("first_step", 0, 0), "first_step of attempt 0"),
        (adds(t=14.0, event="first_step", rank=3, attempt=1), "first_step of attempt 1"),
        (alters("first_step", 2, 3, rank=2), "first_step of attempt 2"),
        (lacks("kill", 1, 1), "kill of attempt 1"),
        (adds(t=25.0, event="kill", rank=1, attempt=2), "kill of attempt 2"),
        (lacks("done", 2, 0), "done of attempt 2"),
        (adds(t=6.0, event="done", rank=0, attempt=0), "done of attempt 0"),
        (adds(t=31.0, event="first_step", rank=0, attempt=3), "attempts that should not be"),
        (alters("kill", 0, 1, t=14.0), "does not lie between"),
        (alters("kill", 0, 1, t=2.0), "does not lie between"),
        (alters("up", 0, 0, threads=2), "differ in threads"),
        (lambda rows: [r | {"world": 2} if r["event"] == "up" else r for r in rows], "a world of 2"),
    ],
)
def test_less_than_a_whole_trial_is_refused(
    tmp_path: Path, change: Callable[[list[Event]], list[Event]], words: str
) -> None:
    with pytest.raises(events.BadTrialError, match=words):
        events.read(written(tmp_path, change(whole())))


def test_no_file_and_a_torn_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(events.BadTrialError, match="no rank wrote"):
        events.read(tmp_path / "none")
    path = written(tmp_path, whole())
    path.write_text(path.read_text()[:-5])
    with pytest.raises(events.BadTrialError, match="no JSON"):
        events.read(path)


def row(ours: float | None, reach: Reach, peer: float | None = None, floor: float | None = None) -> Row:
    return Row(row="r", unit="s", ours=ours, ours_runs=[ours], peer=peer, floor=floor, reach=reach)


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        (row(2.0, Reach("<=", 1.0, of="peer"), peer=2.0), True),
        (row(2.1, Reach("<=", 1.0, of="peer"), peer=2.0), False),
        (row(2.0, Reach("<=", 1.0, of="peer")), None),
        (row(None, Reach("<=", 1.0, of="peer"), peer=2.0), None),
        (row(80.0, Reach("<=", 80)), True),
        (row(80.1, Reach("<=", 80)), False),
        (row(0.0, Reach("<=", 0), peer=4.0), True),
        (row(1.0, Reach("<=", 0), peer=4.0), False),
        (row(5.0, Reach(">=", 4)), True),
        (row(3.0, Reach(">=", 4)), False),
        (row(3.0, Reach("<=", 1.2, of="floor"), floor=2.0), False),
        (row(2.4, Reach("<=", 1.2, of="floor"), floor=2.0), True),
    ],
)
def test_reached(figure: Row, reached: bool | None) -> None:
    assert figure.reached is reached
    assert Row.read(json.loads(json.dumps(figure.record()))).record() == figure.record()


def test_a_lost_value_is_kept_and_not_counted() -> None:
    assert measure.median([3.0, None, 1.0]) == 2.0
    assert measure.median([None]) is None
    assert measure.quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert measure.quantile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert measure.quantile([7.0], 0.99) == 7.0


def test_the_workplace_ends_what_escaped_into_a_session_of_its_own() -> None:
    with measure.workplace() as folder:
        env = os.environ | {"BENCH": str(folder)}
        stray = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
        # The mark shows once the exec is done, which Popen waits for.
        assert measure.marked(str(folder)) == [stray.pid]
    assert not folder.exists()
    deadline = time.monotonic() + 10
    while stray.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stray.returncode == -9


def load(name: str) -> Any:
    """The script of a benchmark, as a module of its own."""
    path = Path(__file__).resolve().parent / name / "bench.py"
    spec = importlib.util.spec_from_file_location(f"{name}_bench", path)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = bench  # dataclasses look for it there
    spec.loader.exec_module(bench)
    return bench


def test_checkpoint_rows_take_the_slower_rank() -> None:
    bench = load("checkpoint")
    found: list[Event] = [{"rank": 0, "what": "report", "trial": 0, "microseconds": 0.5}]
    for rank in range(2):
        for trial in range(-1, 2):
            ours = {"what": "async", "trial": trial, "stall": 0.1 * (1 + rank), "call": 0.1}
            found.append({"rank": rank, **ours})
            found.append({"rank": rank, "what": "copy", "trial": trial, "took": 0.05 * (1 + rank)})
            found.append({"rank": rank, "what": "sync", "trial": trial, "took": 2.0 - rank, "hash": 0.2})
            if (rank, trial) != (1, 1):
                found.append({"rank": rank, "what": "torch", "trial": trial, "took": 4.0})
    stall, sync, share, report = bench.rows(found, 2)
    assert (stall.ours, stall.peer, stall.ratio, stall.reached) == (0.2, 0.1, 2.0, False)
    assert list(sync.peer_runs) == [4.0, None], "a trial that one rank lacks counts for none"
    assert (sync.ours, sync.peer, sync.reached) == (2.0, 4.0, True)
    assert list(share.ours_runs) == [10.0, 10.0]
    assert report.reached


def wrote(attempt: int, rank: int) -> str:
    return json.dumps({"t": 1.0 + rank, "rank": rank, "attempt": attempt, "pid": 10 + rank}) + "\n"


def test_an_attempt_runs_when_all_its_ranks_do() -> None:
    old = wrote(0, 0) + wrote(0, 1)
    assert nodes.starts("", 0) is None
    assert nodes.starts(old, 1) is None
    assert nodes.starts(old + wrote(1, 1) + wrote(1, 0)[:-1], 1) is None, (
        "a line without its end is not there yet"
    )
    rows = nodes.starts(old + wrote(1, 1) + wrote(1, 0), 1)
    assert rows is not None
    assert {k: v["pid"] for k, v in rows.items()} == {0: 10, 1: 11}


@pytest.mark.parametrize("more", [wrote(0, 1), wrote(0, 2), wrote(1, 0)])
def test_a_rank_too_many_is_refused(more: str) -> None:
    with pytest.raises(events.BadTrialError, match=r"twice|one too many|newest"):
        nodes.starts(wrote(0, 0) + wrote(0, 1) + more, 0)


def ray_lines(*what: str) -> str:
    return "".join(
        json.dumps({"what": w, "took": 10.0 + i, "restarts": 1}) + "\n" for i, w in enumerate(what)
    )


def test_rays_losses_come_whole_and_in_order() -> None:
    assert nodes.ray_loss(ray_lines(*nodes.RAY)) == nodes.RayLoss(11.0, 12.0, 1)
    for bad in (ray_lines(*nodes.RAY[:2]), ray_lines(*nodes.RAY[::-1]), "{", '{"what": 1}'):
        with pytest.raises(events.BadTrialError):
            nodes.ray_loss(bad)


def test_rows_of_lost_nodes() -> None:
    ours = [nodes.Loss(1.0, 2.0, 3.0, 7.0, 0, 0.5), nodes.Loss(2.5, 3.0, 4.5, 5.0, 1, 0.5)]
    killed, cut, agent = nodes.rows(ours, [nodes.RayLoss(16.0, 60.0, 1)])
    assert (killed.ours, killed.peer, killed.reached) == (2.5, 16.0, True)
    assert (cut.ours, cut.peer, cut.reached) == (6.0, 60.0, True)
    assert (agent.ours, agent.peer, agent.reached) == (1, 1, False), "a count is a sum"
    killed, _, agent = nodes.rows([*ours, None], [])
    assert (list(killed.ours_runs), killed.peer) == ([2.0, 3.0, None], None)
    assert agent.reached is None, "a trial that gave nothing leaves the count unknown"
    behind = nodes.behind(ours)
    assert [behind[k]["reached"] for k in ("killed_lost", "cut_lost", "agent_back")] == [True, True, True]
    assert nodes.behind([ours[1]])["killed_lost"]["reached"] is False
    assert nodes.rows([], []) == []


def test_rows_of_placement_groups() -> None:
    pg = load("pg")
    run = pg.Run.read(json.dumps({"create": [float(i) for i in range(1, 101)], "seconds": 4.0}))
    assert run.rate == 25
    side, ray = pg.Side([run], [run], [run, run]), pg.Side()
    fast = pg.Run([1.0, 2.0], 9000)
    rows = {r.row: r for r in pg.rows([run], [fast], side, ray)}
    assert list(rows) == ["create p50", "create p99", "cycles, one", "cycles, 64"]
    assert (rows["create p50"].ours, rows["create p99"].ours, rows["cycles, 64"].ours) == (50, 99, 25)
    assert [r.reached for r in rows.values()] == [False, False, False, False]
    assert rows["create p50"].peer is None
    assert [r.floor for r in rows.values()] == [50, 99, 25, 9000], "many clients are bounded by HTTP"
