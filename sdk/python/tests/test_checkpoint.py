"""One step commits once, whole, or not at all (P4)."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim

import troupe


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def named(shim: FakeShim) -> dict[str, str]:
    return {f["path"]: f["part"] for f in shim.last("prepare")["files"]}


def test_committed(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with troupe.checkpoint(10) as ck:
        write(ck.path, "model.pt", "optimizer.pt", "rng.pt", "data.json", "scheduler.bin", "deep/notes.txt")
        ck.cursor = {"samples": 640, "seed": 7}
        ck.config = "abc"
        ck.framework("torch", "2.15.0")
        assert not ck.committed
    assert ck.committed
    assert ck.reason == ""
    assert named(shim) == {
        "rank-0/model.pt": "model",
        "rank-0/optimizer.pt": "optimizer",
        "rank-0/rng.pt": "rng",
        "rank-0/data.json": "data",
        "rank-0/scheduler.bin": "scheduler",
        "rank-0/deep/notes.txt": "other",
    }
    request = shim.last("prepare")
    assert request["cursor"] == '{"samples":640,"seed":7}'
    assert request["config"] == "abc"
    assert request["frameworks"] == '{"torch":"2.15.0"}'
    assert shim.ops() == ["hello", "begin", "prepare", "verdict"]


def test_shared_folder_each_file_is_named_by_one_rank(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with troupe.checkpoint(10) as ck:
        assert ck.dcp_path.name == "shared"
        write(ck.dcp_path, ".metadata", "__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "extra.bin", "tmp")
        ck.add(ck.dcp_path / "extra.bin", "data")
    assert ck.committed
    assert named(shim) == {
        "shared/.metadata": "other",
        "shared/__0_0.distcp": "other",
        "shared/__0_1.distcp": "other",
        "shared/extra.bin": "data",
    }


def test_part_by_hand(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with troupe.checkpoint(10) as ck:
        write(ck.path, "weights.bin")
        ck.add(ck.path / "weights.bin", "model")
        with pytest.raises(troupe.CheckpointError, match="part 'weights'"):
            ck.add(ck.path / "weights.bin", "weights")
        with pytest.raises(troupe.CheckpointError, match="neither below"):
            ck.add(ck.path / ".." / "manifest.json", "model")
    assert named(shim) == {"rank-0/weights.bin": "model"}


def test_exception_in_the_body_gives_the_step_up(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    ck = troupe.checkpoint(10)
    with pytest.raises(ZeroDivisionError), ck:
        write(ck.path, "model.pt")
        _ = 1 / 0
    assert not ck.committed
    assert shim.ops() == ["hello", "begin", "abort"]
    assert not shim.committed
    with troupe.checkpoint(20) as ck:  # the next step is saved as ever
        write(ck.path, "model.pt")
    assert ck.committed


def test_interrupt_in_the_body_gives_the_step_up(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with pytest.raises(KeyboardInterrupt), troupe.checkpoint(10):
        raise KeyboardInterrupt
    assert shim.ops()[-1] == "abort"


DROPPED: list[dict[str, Any]] = [
    {"verdict": {"ok": True, "state": "dropped", "reason": "rank 2 died"}},
    {"verdict": {"ok": False, "code": "dropped", "error": "rank 2 died"}},
    {"prepare": {"ok": False, "code": "dropped", "error": "rank 2 died"}},
    {"prepare": {"ok": False, "code": "space", "error": "rank 2 died: no space"}},
    {"prepare": {"ok": False, "code": "io", "error": "rank 2 died: EIO"}},
    {"begin": {"ok": False, "code": "dropped", "error": "rank 2 died"}},
]


@pytest.mark.parametrize("override", DROPPED)
def test_dropped_is_a_warning(
    shim: FakeShim,
    as_rank: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    override: dict[str, Any],
) -> None:
    as_rank()
    shim.override.update(override)
    with troupe.checkpoint(10) as ck:
        write(ck.path, "model.pt")
        write(ck.dcp_path, ".metadata")
        path = ck.path
    assert not ck.committed
    assert "rank 2 died" in ck.reason
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "rank 2 died" in caplog.text
    assert path.exists() == ("begin" not in override), "a step that never began leaves nothing"


@pytest.mark.parametrize("override", DROPPED)
def test_dropped_raises_when_asked(
    shim: FakeShim, as_rank: Callable[[], None], override: dict[str, Any]
) -> None:
    as_rank()
    shim.override.update(override)
    with pytest.raises(troupe.CheckpointDropped, match="rank 2 died") as e:
        with troupe.checkpoint(10, strict=True) as ck:
            write(ck.path, "model.pt")
    assert e.value.code == "dropped"


def test_full_disk_tells_the_other_ranks(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    shim.override["prepare"] = {"ok": False, "code": "space", "error": "disk full"}
    with troupe.checkpoint(10):
        pass
    assert shim.ops()[-2:] == ["prepare", "abort"]


def test_full_disk_ends_the_rank_when_the_others_cannot_hear_of_it(
    shim: FakeShim, as_rank: Callable[[], None]
) -> None:
    """Otherwise they wait for a verdict that nobody gives while this rank goes on."""
    as_rank()
    shim.override["prepare"] = {"ok": False, "code": "space", "error": "disk full"}
    shim.override["abort"] = {"ok": True}
    ck = troupe.checkpoint(10)
    with pytest.raises(troupe.CheckpointError, match="disk full") as e, ck:
        write(ck.path, "model.pt")
    assert e.value.code == "space"


class Statvfs:
    """A file system without space."""

    f_bavail, f_frsize = 3, 4096


@pytest.mark.parametrize("hidden", [False, True], ids=["errno", "hidden by a library"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
def test_full_disk_in_the_body_costs_the_step(
    shim: FakeShim,
    as_rank: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    hidden: bool,
    strict: bool,
    heard: bool,
) -> None:
    as_rank()
    error: Exception = OSError(errno.ENOSPC, "No space left on device")
    if hidden:
        error = RuntimeError("PytorchStreamWriter failed writing file data/0")
        monkeypatch.setattr(os, "statvfs", lambda _path: Statvfs)
    if not heard:
        shim.override["abort"] = {"ok": True}
    ck = troupe.checkpoint(10, strict=strict)
    if strict or not heard:
        with pytest.raises(type(error)), ck:
            raise error
    else:
        with ck:
            raise error
        assert str(error) in ck.reason
    assert not ck.committed
    assert shim.ops()[-1] == "abort"


def test_an_error_of_the_script_is_its_own(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    steps = iter((10, 20))
    for error in (RuntimeError("bad shape"), OSError(errno.ENOENT, "no such file")):
        with pytest.raises(type(error)), troupe.checkpoint(next(steps)):
            raise error
    assert shim.ops()[-1] == "abort"


def test_no_step_is_written_twice(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    """P4: the folder may hold what is committed."""
    as_rank()
    with troupe.checkpoint(10) as ck:
        write(ck.path, "model.pt")
    for step in (10, 9):
        with pytest.raises(troupe.CheckpointError, match="after step 10"), troupe.checkpoint(step):
            pytest.fail("entered")
    assert shim.ops().count("begin") == 1


def test_dropped_by_another_rank(
    shim: FakeShim, as_rank: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank()
    shim.world = 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    with troupe.checkpoint(10) as ck:
        write(ck.path, "model.pt")
        shim.drop(10, "rank 1 gave up")
    assert not ck.committed
    assert ck.reason == "rank 1 gave up"


@pytest.mark.parametrize(
    "override",
    [
        {"begin": {"ok": False, "code": "space", "error": "disk full"}},
        {"begin": {"ok": False, "code": "io", "error": "read-only"}},
        {"begin": {"ok": False, "code": "generation", "error": "an older attempt"}},
        {"begin": {"ok": True}},
        {"prepare": {"ok": False, "code": "generation", "error": "an older attempt"}},
        {"prepare": {"ok": False, "code": "usage", "error": "bad name"}},
        {"verdict": {"ok": True, "state": "perhaps"}},
        {"verdict": {"ok": True}},
    ],
)
def test_what_is_no_verdict_raises(
    shim: FakeShim, as_rank: Callable[[], None], override: dict[str, Any]
) -> None:
    as_rank()
    shim.override.update(override)
    ck = troupe.checkpoint(10)
    with pytest.raises(troupe.TroupeError), ck:
        write(ck.path, "model.pt")
    assert not ck.committed
    del shim.override[next(iter(override))]
    with troupe.checkpoint(20) as ck:
        pass
    assert ck.committed


def link_file(folder: Path) -> None:
    (folder / "model.pt").symlink_to("/etc/hostname")


def link_folder(folder: Path) -> None:
    (folder / "deep").symlink_to(folder.parent)


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize("make", [link_file, link_folder, fifo])
@pytest.mark.parametrize("where", ["path", "dcp_path"])
def test_what_is_no_plain_file_is_refused(
    shim: FakeShim, as_rank: Callable[[], None], make: Callable[[Path], None], where: str
) -> None:
    as_rank()
    with pytest.raises(troupe.CheckpointError, match="not a plain file"), troupe.checkpoint(10) as ck:
        make(getattr(ck, where))
    assert shim.ops() == ["hello", "begin", "abort"]


def test_added_link_is_refused(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with pytest.raises(troupe.CheckpointError, match="cannot be found"), troupe.checkpoint(10) as ck:
        ck.add(ck.dcp_path / "missing", "data")
    assert shim.ops()[-1] == "abort"


class Mesh:
    """What torch's DeviceMesh has."""

    mesh_dim_names = ("dp",)
    shape = (1,)


@pytest.mark.parametrize("mesh", [{"dp": 1}, Mesh()])
def test_mesh_goes_along(shim: FakeShim, as_rank: Callable[[], None], mesh: object) -> None:
    as_rank()
    with troupe.checkpoint(10) as ck:
        write(ck.path, "model.pt")
        ck.mesh = mesh
    assert shim.last("prepare")["mesh"] == [{"name": "dp", "size": 1}]


@pytest.mark.parametrize("mesh", [{}, {"dp": 3}, {"dp": 1, "tp": True}, {"dp": 0}, {1: 1}, "dp", 1, object()])
def test_mesh_must_hold_the_world(shim: FakeShim, as_rank: Callable[[], None], mesh: object) -> None:
    as_rank()
    with pytest.raises(troupe.CheckpointError, match="mesh"), troupe.checkpoint(10) as ck:
        write(ck.path, "model.pt")
        ck.mesh = mesh


def test_mesh_of_the_step_to_load(
    as_rank: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank()
    monkeypatch.setattr(troupe.context.session(), "resume", lambda: (tmp_path, 10))
    with pytest.raises(troupe.TroupeError, match="manifest"):
        troupe.resume_mesh()
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"mesh": [{"name": "tp", "size": 2}, {"name": "dp", "size": 3}]}))
    assert list((troupe.resume_mesh() or {}).items()) == [("tp", 2), ("dp", 3)]
    manifest.write_text("{}")
    assert troupe.resume_mesh() is None
    monkeypatch.setattr(troupe.context.session(), "resume", lambda: (None, -1))
    assert troupe.resume_mesh() is None


@pytest.mark.parametrize("cursor", [float("nan"), {1}, object(), "x" * 5_000])
def test_cursor_must_be_short_json(shim: FakeShim, as_rank: Callable[[], None], cursor: object) -> None:
    as_rank()
    with pytest.raises(troupe.CheckpointError, match="cursor"), troupe.checkpoint(10) as ck:
        ck.cursor = cursor
    assert shim.ops()[-1] == "abort"


def test_metrics_go_along(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.step(9, speed=5.0)  # of another step than the one saved: not taken along
    troupe.report(acc=0.5, f1=0.7)
    with troupe.checkpoint(10) as ck:
        ck.metric("val/loss", 0.25)
        ck.metric("acc", 1)
    assert shim.last("prepare")["metrics"] == {"val/loss": 0.25, "acc": 1.0, "f1": 0.7}


@pytest.mark.parametrize(
    ("name", "value"), [("loss", "high"), ("loss", float("nan")), ("", 1.0), ("a b", 1.0), ("x" * 64, 1.0)]
)
def test_bad_metric_gives_the_step_up(
    shim: FakeShim, as_rank: Callable[[], None], name: str, value: Any
) -> None:
    as_rank()
    with pytest.raises(troupe.CheckpointError, match="metric"), troupe.checkpoint(10) as ck:
        ck.metric(name, value)
    assert shim.ops()[-1] == "abort"


def test_more_files_than_a_frame_holds(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with pytest.raises(troupe.TroupeError, match="a frame holds"), troupe.checkpoint(10) as ck:
        write(ck.path, *(f"{n:0100}" for n in range(600)))
    assert shim.ops()[-1] == "abort"
    with troupe.checkpoint(20) as ck:  # nothing was sent: the connection is whole
        pass
    assert ck.committed


def test_one_at_a_time(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with troupe.checkpoint(10) as ck:
        with pytest.raises(troupe.CheckpointError, match="step 10 is still being saved"):
            with troupe.checkpoint(20):
                pass
    assert ck.committed


@pytest.mark.parametrize("step", [-1, 1.5, "3", True, None])
def test_bad_step(step: Any) -> None:
    with pytest.raises(troupe.TroupeError, match="whole number"):
        troupe.checkpoint(step)


def test_outside_it_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with troupe.checkpoint(10) as ck:
        write(ck.path, "model.pt")
        write(ck.dcp_path, ".metadata")
        root = ck.path.parent
        assert root.exists()
    assert not root.exists()
    assert not ck.committed
    assert "not started by Troupe" in caplog.text
    ck = troupe.checkpoint(20)
    with pytest.raises(ZeroDivisionError), ck:
        _ = 1 / 0
    assert not ck.path.parent.exists()


def test_outside_strict_does_not_raise() -> None:
    """The same script must run under plain Python."""
    with troupe.checkpoint(10, strict=True):
        pass
