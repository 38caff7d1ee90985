"""What a training script calls: under a shim, without one, and in children of a rank."""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_shim import FakeShim

import troupe
from troupe import page

ROOT = Path(__file__).resolve().parents[1]


def test_context_under_a_shim(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    ctx = troupe.init()
    assert ctx == troupe.Context(
        rank=0, world=1, local_rank=0, generation=1, attempt=0, run="run", job="job-1",
        managed=True, every_steps=10,
    )  # fmt: skip
    assert troupe.init() == ctx


def test_step_is_published_with_its_time(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.init()
    before = time.monotonic_ns()
    troupe.step(41)
    troupe.step(42)
    assert shim.page_field(0, page.STEP) == 42
    assert before <= shim.page_field(0, page.TIME) <= time.monotonic_ns()
    assert shim.ops() == ["hello"], "a step costs no round trip"


def test_first_call_initialises(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.step(1)
    assert shim.page_field(0, page.STEP) == 1


@pytest.mark.parametrize("bad", ["7", 1.5, None, 2**63])
def test_step_must_be_a_whole_number(shim: FakeShim, as_rank: Callable[[], None], bad: object) -> None:
    as_rank()
    troupe.step(7)
    with pytest.raises(troupe.TroupeError):
        troupe.step(bad)  # type: ignore[arg-type]
    assert shim.page_field(0, page.STEP) == 7


def test_metrics_go_out_rarely(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()

    class Expensive:
        def __float__(self) -> float:
            Expensive.conversions += 1
            return 2.5

        conversions = 0

    for n in range(1, 200):
        troupe.step(n, loss=Expensive())
    assert shim.last("report")["metrics"] == {"loss": 2.5}
    assert Expensive.conversions == shim.ops().count("report") < 100


def test_metric_that_cannot_be_sent_does_not_end_training(
    shim: FakeShim, as_rank: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    as_rank()
    troupe.step(1, loss="high")
    assert "metric 'loss'" in caplog.text
    assert shim.page_field(0, page.STEP) == 1


def test_report_leaves_out_what_json_has_not(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.report(a=1, b=math.nan, c=math.inf, d=True)
    assert shim.last("report")["metrics"] == {"a": 1.0, "d": 1.0}
    with pytest.raises(troupe.TroupeError, match="not a number"):
        troupe.report(a=[])
    with pytest.raises(troupe.TroupeError, match="64"):
        troupe.report(**{f"m{i}": 1.0 for i in range(65)})


def test_should_checkpoint_is_a_function_of_the_step(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    answers = [step for step in range(-10, 35) if troupe.should_checkpoint(step)]
    assert answers == [10, 20, 30]
    assert shim.page_field(0, page.CALLS) == 45
    assert shim.ops() == ["hello"]


def test_no_interval_means_never(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    shim.every = 0
    as_rank()
    assert not any(troupe.should_checkpoint(step) for step in range(100))


def test_should_stop_reads_the_page(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    assert not troupe.should_stop()
    assert troupe.seconds_left() is None
    shim.set_page_field(0, page.STOPBY, time.monotonic_ns() + 60 * 10**9)
    assert 50 < (troupe.seconds_left() or 0) <= 60
    shim.set_page_field(0, page.STOPBY, 1)
    assert troupe.seconds_left() == 0
    shim.set_page_field(0, page.STOP, 1)
    assert troupe.should_stop()


def test_resume_from_scratch(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    ctx = troupe.init()
    assert troupe.resume_point() is None
    assert ctx.resume_step == -1
    assert shim.ops().count("resume") == 1, "asked once"


def test_resume_point(shim: FakeShim, as_rank: Callable[[], None], tmp_path: Path) -> None:
    shim.resume = (str(tmp_path), 30)
    as_rank()
    assert troupe.resume_point() == tmp_path
    assert troupe.init().resume_step == 30


@pytest.mark.parametrize("reply", [{"ok": True, "step": 4}, {"ok": True, "step": -1, "path": "/x"}])
def test_contradicting_resume_is_an_error(
    shim: FakeShim, as_rank: Callable[[], None], reply: dict[str, object]
) -> None:
    """A rank that starts from scratch by mistake would train another model."""
    as_rank()
    shim.override["resume"] = reply
    with pytest.raises(troupe.ProtocolError):
        troupe.resume_point()


def test_phases_nest(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with troupe.phase("evaluate", timeout=60):
        end = shim.page_field(0, page.PHASE)
        assert end > time.monotonic_ns()
        with troupe.phase("upload", timeout=0.5):
            assert shim.page_field(0, page.PHASE) < end
    assert shim.page_field(0, page.PHASE) == 0
    sent = [(r["name"], r["timeoutMs"]) for r in shim.requests if r["op"] == "phase"]
    assert sent == [("evaluate", 60_000), ("upload", 500), ("evaluate", 60_000), ("", 0)]


def test_phase_ends_after_an_error(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with pytest.raises(ZeroDivisionError), troupe.phase("evaluate", timeout=60):
        _ = 1 / 0
    assert shim.page_field(0, page.PHASE) == 0


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, 1e9])
def test_phase_needs_a_sane_timeout(timeout: float) -> None:
    with pytest.raises(troupe.TroupeError, match="timeout"):
        troupe.phase("evaluate", timeout=timeout)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", None), ("RANK", "one"), ("WORLD_SIZE", "-1"), ("TROUPE_GENERATION", ""), ("RANK", "²")],
)
def test_broken_environment_is_named(
    shim: FakeShim,
    as_rank: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str | None,
) -> None:
    as_rank()
    monkeypatch.delenv(name)
    if value is not None:
        monkeypatch.setenv(name, value)
    with pytest.raises(troupe.TroupeError, match=name) as e:
        troupe.init()
    assert e.value.code == "environment"


def test_everything_is_a_no_op_outside(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")  # as torchrun sets them
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    caplog.set_level(logging.DEBUG, "troupe")
    ctx = troupe.init()
    assert (ctx.rank, ctx.world, ctx.local_rank, ctx.attempt, ctx.managed) == (3, 8, 1, 2, False)
    troupe.step(1, loss=object())
    troupe.report(loss=1)
    assert not troupe.should_checkpoint(10)
    assert not troupe.should_stop()
    assert troupe.resume_point() is None
    with troupe.phase("evaluate", timeout=1):
        pass
    assert len(caplog.records) == 1, "one debug line"


def test_plain_python_is_rank_0_of_1() -> None:
    assert troupe.init()[:3] == (0, 1, 0)


def in_fork(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads, which is the point
def test_forked_child_leaves_the_parents_connection_alone(
    shim: FakeShim, as_rank: Callable[[], None]
) -> None:
    as_rank()
    troupe.init()
    troupe.step(5)

    def child() -> bool:
        troupe.step(99, loss=1.0)
        troupe.report(loss=1.0)
        with troupe.checkpoint(10) as ck:
            (ck.path / "model.pt").write_bytes(b"x")
        return (
            not troupe.should_checkpoint(10)
            and not ck.committed
            and troupe.init().rank == 0
            and not troupe.init().managed
        )

    before = list(shim.requests)
    assert in_fork(child)
    assert shim.requests == before
    assert shim.page_field(0, page.STEP) == 5
    troupe.report(loss=2.0)  # the parent's connection still works
    assert shim.last("report")["metrics"] == {"loss": 2.0}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_inside_a_checkpoint(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with troupe.checkpoint(10) as ck:
        (ck.path / "model.pt").write_bytes(b"x")
        assert in_fork(lambda: ck.__exit__(None, None, None) is False)
    assert ck.committed
    assert shim.ops().count("prepare") == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_before_init_is_a_rank(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    """The warm forkserver imports the package and forks the ranks."""
    as_rank()
    assert in_fork(lambda: troupe.init().managed)
    assert shim.ops() == ["hello"]


def test_spawned_child_is_no_rank(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.init()
    code = "import troupe; assert not troupe.init().managed; troupe.step(99)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
    assert shim.ops() == ["hello"]


def test_threads_share_one_connection(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(20):
                troupe.report(value=n * 100 + i)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors
    assert shim.ops().count("hello") == 1
    assert shim.ops().count("report") == 80


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60, capture_output=True, text=True
    )
    return set(out.stdout.split())


def test_import_is_light() -> None:
    """Every rank imports the package: no torch, and nothing that takes milliseconds."""
    loaded = modules_after("import troupe")
    heavy = {"torch", "json", "logging", "numpy", "argparse", "asyncio", "dataclasses", "inspect", "pathlib",
             "socket", "subprocess", "tempfile", "urllib", "hashlib", "random"}  # fmt: skip
    already = modules_after("pass")
    assert not (loaded - already) & heavy
    assert "torch" not in modules_after("import troupe.launch, troupe.__main__, troupe.binary")


def test_version_is_that_of_the_tree() -> None:
    text = (ROOT.parents[1] / "VERSION").read_text().strip()
    as_pep_440 = re.sub(r"-dev$", ".dev0", text)
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert troupe.__version__ == project[1] == as_pep_440
