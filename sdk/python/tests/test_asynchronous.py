"""An asynchronous save is a copy of its moment, and commits as any other (P4)."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim
from ranks import ROOT

import troupe
from troupe import asynchronous, page
from troupe.asynchronous import AsyncCheckpoint


def staging(step: int, **options: Any) -> AsyncCheckpoint:
    ck = troupe.checkpoint(step, asynchronous=True, **options)
    assert isinstance(ck, AsyncCheckpoint)
    return ck


def put(ck: AsyncCheckpoint, **files: bytes) -> None:
    for name, data in files.items():
        with ck.open(f"{name}.bin") as f:
            f.write(data)


def content(shim: FakeShim, step: int, name: str) -> bytes:
    return (shim.committed[step] / "rank-0" / name).read_bytes()


def test_committed_later(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    shim.slow = True
    with staging(10) as ck:
        put(ck, model=b"weights", rng=b"")
        ck.cursor = {"samples": 3}
    assert not ck.committed
    assert not ck.done()
    assert not shim.committed
    shim.release()
    assert ck.wait()
    assert ck.done()
    assert ck.committed
    assert content(shim, 10, "model.bin") == b"weights"
    assert content(shim, 10, "rng.bin") == b""
    request = shim.last("stage")
    assert request["cursor"] == '{"samples":3}'
    assert {f["path"]: f["part"] for f in request["files"]} == {
        "rank-0/model.bin": "model",
        "rank-0/rng.bin": "rng",
    }
    assert "begin" not in shim.ops(), "no folder was asked for"


def test_what_changes_afterwards_is_not_saved(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    shim.slow = True
    data = bytearray(b"a" * 100_000)
    with staging(10) as ck:
        put(ck, model=data)
    data[:] = b"b" * len(data)
    shim.release()
    assert ck.wait()
    assert content(shim, 10, "model.bin") == b"a" * 100_000


def test_the_buffer_grows_and_stays(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    pieces = [os.urandom(700_000) for _ in range(9)]
    for step in (1, 2):
        with staging(step) as ck:
            put(ck, small=b"x")
            with ck.open("deep/large.bin") as f:
                for piece in pieces:
                    f.write(piece)
                assert f.tell() == sum(map(len, pieces))
        assert ck.wait()
        assert content(shim, step, "deep/large.bin") == b"".join(pieces)
        assert content(shim, step, "small.bin") == b"x"
    asked = [r for r in shim.requests if r["op"] == "buffer"]
    assert asked[0]["buffer"] == ""
    assert asked[-1]["buffer"] != ""
    assert asked[-1]["size"] >= 9 * 700_000
    assert [r["op"] for r in shim.requests].count("buffer") == len(asked)
    assert shim.ops()[-3:] == ["buffer", "stage", "verdict"], "the second save asked once"


def test_reserve(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with staging(1) as ck:
        ck.reserve(5_000_000)
        put(ck, model=bytes(4_000_000))
        ck.reserve(500_000)
        put(ck, data=bytes(500_000))
    assert ck.wait()
    assert shim.ops().count("buffer") == 1


def test_own_files_beside_staged_ones(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with staging(10) as ck:
        put(ck, model=b"weights")
        (ck.path / "notes.txt").write_text("by hand")
        (ck.dcp_path / "__0_0.distcp").write_text("shard")
        (ck.dcp_path / ".metadata").write_text("index")
        ck.add(ck.path / "notes.txt", "data")
    assert ck.wait()
    assert {f["path"]: f["part"] for f in shim.last("stage")["files"]} == {
        "rank-0/model.bin": "model",
        "rank-0/notes.txt": "data",
        "shared/.metadata": "other",
        "shared/__0_0.distcp": "other",
    }


def test_the_same_file_twice(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with pytest.raises(troupe.CheckpointError, match="twice"), staging(10) as ck:
        put(ck, model=b"weights")
        (ck.path / "model.bin").write_text("by hand")
    assert shim.ops()[-1] == "abort"
    with pytest.raises(troupe.CheckpointError, match="already"), staging(20) as ck:
        put(ck, model=b"weights")
        put(ck, model=b"weights")
    with pytest.raises(troupe.CheckpointError, match="close the last"), staging(30) as ck:
        ck.open("a")
        ck.open("b")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a\\b", "a\nb", "x" * 2000])
@pytest.mark.parametrize("later", [True, False])
def test_names(shim: FakeShim, as_rank: Callable[[], None], name: str, later: bool) -> None:
    as_rank()
    with pytest.raises(troupe.CheckpointError, match="not the name"):
        with troupe.checkpoint(10, asynchronous=later) as ck:
            ck.open(name)


def test_open_without_asynchronous(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with troupe.checkpoint(10) as ck:
        with ck.open("deep/weights.bin", "model") as f:
            f.write(b"weights")
        with pytest.raises(troupe.CheckpointError, match="part"):
            ck.open("x", "weights")
    assert ck.committed
    assert ck.done()
    assert ck.wait()
    assert shim.last("prepare")["files"] == [{"path": "rank-0/deep/weights.bin", "part": "model"}]


def test_the_next_save_waits_while_the_last_is_written(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    shim.slow = True
    with staging(10) as first:
        put(first, model=b"1")
    # The shim answers only when the step is written.
    import threading

    timer = threading.Timer(0.2, shim.release)
    timer.start()
    with staging(20) as second:
        put(second, model=b"2")
    timer.join()
    assert second.wait()
    assert first.done()
    assert first.committed
    assert content(shim, 10, "model.bin") == b"1"
    assert content(shim, 20, "model.bin") == b"2"


@pytest.mark.parametrize("own", [True, False])
def test_skip_gives_the_step_up_for_all(
    shim: FakeShim, as_rank: Callable[[], None], caplog: pytest.LogCaptureFixture, own: bool
) -> None:
    as_rank()
    shim.slow = True
    with staging(10, busy="skip") as first:
        put(first, model=b"1")
    with staging(20, busy="skip") as second:
        if own:
            (second.path / "x").write_text("a body runs to its end")
        put(second, model=b"2")
    assert second.done()
    assert not second.committed
    assert "step 10 is still being written" in second.reason
    assert "still being written" in shim.last("abort")["name"]
    assert "step 20 was not committed" in caplog.text
    with pytest.raises(troupe.CheckpointDropped), staging(25, busy="skip", strict=True) as third:
        put(third, model=b"3")
    shim.release()
    assert first.wait()
    with pytest.raises(troupe.CheckpointError, match="busy="):
        troupe.checkpoint(30, asynchronous=True, busy="perhaps")


def test_a_later_save_learns_of_the_earlier(
    shim: FakeShim, as_rank: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    as_rank()
    with staging(10) as first:
        put(first, model=b"1")
        shim.drop(10, "rank 3 gave up")
    with troupe.checkpoint(20) as second:
        assert not first.committed
        assert first.reason == "rank 3 gave up"
    assert "step 10 was not committed: rank 3 gave up" in caplog.text
    assert second.committed
    assert first.done()


def test_strict_raises_where_the_verdict_is_asked_for(
    shim: FakeShim, as_rank: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    as_rank()
    for step in (10, 20):
        with staging(step, strict=True) as ck:
            shim.drop(step, "rank 3 gave up")
        if step == 10:
            with pytest.raises(troupe.CheckpointDropped, match="rank 3"):
                ck.wait()
    with troupe.checkpoint(30):  # another step's entry only logs
        pass
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    "override",
    [
        {"buffer": {"ok": False, "code": "memory", "error": "no memory"}},
        {"buffer": {"ok": True, "buffer": "x", "size": 1}},
        {"buffer": {"ok": True, "buffer": "x", "size": 1 << 30}},
        {"stage": {"ok": False, "code": "usage", "error": "bad name"}},
        {"stage": {"ok": False, "code": "generation", "error": "an older attempt"}},
    ],
)
def test_what_cannot_be_staged(shim: FakeShim, as_rank: Callable[[], None], override: dict[str, Any]) -> None:
    as_rank()
    shim.override.update(override)
    with pytest.raises(troupe.TroupeError), staging(10) as ck:
        put(ck, model=b"1")
    assert ck.done()
    assert not ck.committed
    assert shim.ops()[-1] == "abort"
    shim.override.clear()
    with staging(20) as ck:
        put(ck, model=b"1")
    assert ck.wait()


def test_busy_without_a_buffer(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    shim.slow = True
    with staging(10):
        pass
    with staging(20) as ck:  # an empty body asks for nothing, so that nothing waits
        pass
    assert ck.done()
    assert not ck.committed
    shim.release()


def test_exception_in_the_body(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    ck = staging(10)
    with pytest.raises(ZeroDivisionError), ck:
        put(ck, model=b"1")
        _ = 1 / 0
    assert ck.done()
    assert ck.reason == "ZeroDivisionError while saving"
    assert shim.ops()[-1] == "abort"
    assert not shim.committed


def test_verdict_before_the_end_of_the_body(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with staging(10) as ck, pytest.raises(troupe.CheckpointError, match="not staged yet"):
        ck.wait()
    with pytest.raises(AttributeError, match="no attribute 'paths'"):
        _ = ck.paths


def test_outside_troupe(caplog: pytest.LogCaptureFixture) -> None:
    with staging(10) as ck:
        put(ck, model=b"1")
        ck.reserve(1 << 40)
        (ck.path / "x").write_text("x")
        root = ck.path.parent
    assert not root.exists()
    assert ck.done()
    assert not ck.committed
    assert not ck.wait()
    assert "not started by Troupe" in caplog.text


def test_a_forked_child_forgets(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with staging(10) as ck:
        put(ck, model=b"1")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not asynchronous._flight and asynchronous._buffer is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ck.wait()


def test_the_last_save_before_a_stop_waits(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    """A drain ends the ranks after this step: it must be known to be committed."""
    as_rank()
    troupe.init()
    shim.set_page_field(0, page.STOP, 1)
    assert troupe.should_stop()
    with staging(10) as ck:
        put(ck, model=b"1")
    assert ck.committed
    shim.drop(20, "rank 3 gave up")
    with staging(20) as ck:
        put(ck, model=b"1")
    assert not ck.committed
    assert ck.reason == "rank 3 gave up"


END = """
import sys, troupe
with troupe.checkpoint(10, asynchronous=True) as ck:
    with ck.open("model.bin") as f:
        f.write(b"weights")
print("end", flush=True)
if len(sys.argv) > 1:
    raise ValueError("after the save")
"""


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_script_waits(shim: FakeShim, short_path: Path, fails: bool) -> None:
    """A rank that has ended can commit nothing; one that failed must say so at once."""
    shim.slow = True
    env = os.environ | shim.environment(0) | {"PYTHONPATH": str(ROOT)}
    rank = subprocess.Popen(
        [sys.executable, "-c", END, *(["fail"] if fails else [])],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"end\n"
        if fails:
            assert rank.wait(60) == 1
            assert not shim.committed
            return
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(0.3)
        shim.release()
        assert rank.wait(60) == 0
        assert content(shim, 10, "model.bin") == b"weights"
