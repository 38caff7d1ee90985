"""What is staged from torch is what torch.save would have written, at that moment."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim

import troupe

pytestmark = pytest.mark.torch


def states() -> dict[str, Any]:
    """A state with everything that a storage can be."""
    import torch

    base = torch.arange(1000, dtype=torch.float32)
    return {
        "base": base,
        "view": base[10:20],
        "strided": base.view(10, 100).t(),
        "empty": torch.empty(0),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "half": torch.randn(33).half(),
        "bfloat16": torch.randn(17).bfloat16(),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(5, dtype=torch.complex64),
        "large": torch.randn(300_000),
        "parameter": torch.nn.Parameter(torch.randn(3, 4)),
        "nested": [{"a": (torch.ones(2), 7, "text", None)}, 1.5],
    }


def equal(a: Any, b: Any) -> bool:
    import torch

    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def clone(value: Any) -> Any:
    import copy

    return copy.deepcopy(value)


def test_staged_files_load_as_saved_ones(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    import torch

    as_rank()
    state = states()
    before = clone(state)
    shim.slow = True
    with troupe.checkpoint(10, asynchronous=True) as ck:
        with ck.open("model.pt") as f:
            troupe.torch.write(state, f)
    with torch.no_grad():  # what training does next
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.numel():
                value.zero_()
    shim.release()
    assert ck.wait()
    path = shim.committed[10] / "rank-0" / "model.pt"
    for mmap in (False, True):  # by torch itself, without this package
        found = torch.load(path, weights_only=True, mmap=mmap)
        assert equal(found, before)
        assert found["view"].untyped_storage().data_ptr() == found["base"].untyped_storage().data_ptr()
    with zipfile.ZipFile(path) as z:
        assert any("data.pkl" in n for n in z.namelist())


def test_save_is_the_same_either_way(shim: FakeShim, as_rank: Callable[[], None], tmp_path: Path) -> None:
    """The bytes of the files are those of a synchronous save."""
    import torch
    from torch import nn

    as_rank()
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.randn(6, 64)).sum().backward()
    optimizer.step()
    scheduler.step()
    for step, later in ((10, False), (20, True), (30, True)):
        with troupe.checkpoint(step, asynchronous=later) as ck:
            troupe.torch.save(ck, model=model, optimizer=optimizer, scheduler=scheduler, data={"samples": 64})
        assert ck.wait()
    first = shim.committed[10] / "rank-0"
    names = {"model.pt", "optimizer.pt", "scheduler.pt", "data.pt", "rng.pt"}
    for step in (10, 20, 30):
        folder = shim.committed[step] / "rank-0"
        assert {p.name for p in folder.iterdir()} == names
        for name in names:
            with (
                zipfile.ZipFile(folder / name) as ours,
                zipfile.ZipFile(first / name) as theirs,
            ):
                for entry in theirs.infolist():
                    inner = entry.filename.partition("/")[2]
                    if inner.endswith("serialization_id"):
                        continue
                    (mine,) = [e for e in ours.infolist() if e.filename.partition("/")[2] == inner]
                    assert _raw(folder / name, mine) == _raw(first / name, entry), name
    assert shim.ops().count("buffer") == 2, "one round trip a save: the estimate was enough"
    other = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8))
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.5)
    other_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(other_optimizer, 10)
    data = troupe.torch.load(
        shim.committed[30], model=other, optimizer=other_optimizer, scheduler=other_scheduler
    )
    assert data == {"samples": 64}
    assert equal(dict(model.state_dict()), dict(other.state_dict()))
    assert equal(optimizer.state_dict(), other_optimizer.state_dict())
    assert scheduler.state_dict() == other_scheduler.state_dict()


def _raw(path: Path, entry: zipfile.ZipInfo) -> bytes:
    """The stored bytes of an entry; zipfile itself would compare the checksum that is left out."""
    data = path.read_bytes()
    at = entry.header_offset
    start = at + 30 + int.from_bytes(data[at + 26 : at + 28], "little")
    start += int.from_bytes(data[at + 28 : at + 30], "little")
    return data[start : start + entry.file_size]


def test_more_than_the_estimate(
    shim: FakeShim, as_rank: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state whose size cannot be seen from outside still fits: the buffer grows."""
    import torch

    as_rank()
    monkeypatch.setattr(troupe.torch, "_weight", lambda state: 10)

    class Hidden:
        def state_dict(self) -> dict[str, Any]:
            return {"x": torch.arange(1_000_000), "y": torch.arange(1_000_000)}

    with troupe.checkpoint(10, asynchronous=True) as ck:
        troupe.torch.save(ck, model=Hidden(), rng=False)
    assert ck.wait()
    found = troupe.torch.read(shim.committed[10] / "rank-0" / "model.pt")
    assert torch.equal(found["y"], torch.arange(1_000_000))


def test_what_cannot_be_pickled_gives_the_step_up(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    with pytest.raises((AttributeError, TypeError)), troupe.checkpoint(10, asynchronous=True) as ck:
        with ck.open("model.pt") as f:
            troupe.torch.write({"x": (i for i in ())}, f)
    assert shim.ops()[-1] == "abort"
    assert not shim.committed


def test_a_sharded_state_is_never_overwritten(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    import torch

    as_rank()
    state = {"model": {"w": torch.arange(10)}, "step": 7}
    with troupe.checkpoint(10) as ck:
        troupe.torch.save_sharded(ck, state)
        with pytest.raises(troupe.CheckpointError, match="already"):
            troupe.torch.save_sharded(ck, state)
    assert ck.committed
    assert {f["path"] for f in shim.last("prepare")["files"]} == {"shared/.metadata", "shared/__0_0.distcp"}
    other = {"model": {"w": torch.zeros(10, dtype=torch.int64)}, "step": 0}
    troupe.torch.load_sharded(shim.committed[10], other)
    assert torch.equal(other["model"]["w"], torch.arange(10))
    assert other["step"] == 7
    for bad in ({"model": {"v": torch.zeros(3)}}, {"model": {"w": torch.zeros(11, dtype=torch.int64)}}):
        with pytest.raises(troupe.CheckpointError, match="does not hold"):
            troupe.torch.load_sharded(shim.committed[10], bad)
    with pytest.raises(troupe.CheckpointError, match="no sharded state"):
        troupe.torch.load_sharded(shim.committed[10] / "rank-0", other)
