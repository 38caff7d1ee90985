"""What troupe.torch promises: priming changes nothing a user can see, and files hold what was saved."""

from __future__ import annotations

import pickle
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim

import troupe

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one rank."""
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def snapshot(module: Any) -> dict[str, Any]:
    return {k: v.clone() for k, v in module.state_dict().items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    import torch

    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def draws() -> list[float]:
    import numpy
    import torch

    return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]


@pytest.mark.parametrize("kind", ["tensor", "tuple", "mapping"])
def test_prime_rebuilds_and_leaves_no_trace(group: None, kind: str) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(network())
    before = snapshot(ddp)
    generators = troupe.torch.rng_state()
    expected = draws()
    troupe.torch.set_rng_state(generators)

    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    troupe.torch.prime(ddp, {"tensor": x, "tuple": (x,), "mapping": {"input": x}}[kind])

    assert ddp._has_rebuilt_buckets
    assert same(before, snapshot(ddp)), "weights and running statistics are as before"
    assert all(p.grad is None for p in ddp.parameters())
    assert draws() == expected, "no random number is used up"


def test_prime_takes_a_loss(group: None) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    seen: list[Any] = []

    def loss(output: Any) -> Any:
        seen.append(output)
        return output.square().mean()

    troupe.torch.prime(DistributedDataParallel(network()), torch.zeros(6, 4), loss)
    assert len(seen) == 1


def test_prime_comes_before_training(group: None) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(network())
    ddp(torch.zeros(6, 4)).sum().backward()
    with pytest.raises(troupe.TroupeError, match="before the first step"):
        troupe.torch.prime(ddp, torch.zeros(6, 4))


def test_prime_restores_after_a_failure(group: None) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(network())
    before = snapshot(ddp)

    def loss(output: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        troupe.torch.prime(ddp, torch.zeros(6, 4), loss)
    assert same(before, snapshot(ddp))


def test_prime_leaves_a_plain_model_alone() -> None:
    troupe.torch.prime(network(), "no input at all")


def test_generators_survive_a_file(tmp_path: Path) -> None:
    troupe.torch.write(troupe.torch.rng_state(), tmp_path / "rng.pt")
    expected = draws()
    draws()
    troupe.torch.set_rng_state(troupe.torch.read(tmp_path / "rng.pt"))
    assert draws() == expected


def test_files_have_no_zip_checksums_and_the_setting_returns(tmp_path: Path) -> None:
    import torch

    before = torch.serialization.get_crc32_options()
    troupe.torch.write({"x": torch.arange(1000)}, tmp_path / "a.pt")
    assert torch.serialization.get_crc32_options() == before
    with zipfile.ZipFile(tmp_path / "a.pt") as z:
        assert all(i.CRC == 0 for i in z.infolist() if "data/" in i.filename), z.infolist()
    assert torch.equal(troupe.torch.read(tmp_path / "a.pt")["x"], torch.arange(1000))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        troupe.torch.write(lambda: None, tmp_path / "b.pt")
    assert torch.serialization.get_crc32_options() == before


def trained() -> tuple[Any, Any]:
    import torch

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(6, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_save_and_load(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    model, optimizer = trained()
    with troupe.checkpoint(10) as ck:
        troupe.torch.save(ck, model=model, optimizer=optimizer, data={"samples": 640})
    assert ck.committed
    request = shim.last("prepare")
    assert {f["path"]: f["part"] for f in request["files"]} == {
        f"rank-0/{part}.pt": part for part in ("model", "optimizer", "rng", "data")
    }
    assert request["cursor"] == '{"samples":640}'
    assert "torch" in request["frameworks"]
    expected = draws()

    other, other_optimizer = trained()
    assert not same(snapshot(model), snapshot(other))
    data = troupe.torch.load(shim.committed[10], model=other, optimizer=other_optimizer)
    assert data == {"samples": 640}
    assert same(snapshot(model), snapshot(other))
    assert draws() == expected
    ours, theirs = optimizer.state_dict()["state"], other_optimizer.state_dict()["state"]
    assert same(
        {str(k): v["momentum_buffer"] for k, v in ours.items()},
        {str(k): v["momentum_buffer"] for k, v in theirs.items()},
    )


def test_load_fills_in_no_defaults(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    model, optimizer = trained()
    with troupe.checkpoint(10) as ck:
        troupe.torch.save(ck, model=model, rng=False)
    where = shim.committed[10]
    with pytest.raises(troupe.CheckpointError, match=r"optimizer\.pt"):
        troupe.torch.load(where, model=model, optimizer=optimizer, rng=False)
    with pytest.raises(troupe.CheckpointError, match=r"rng\.pt"):
        troupe.torch.load(where, model=model)
    assert troupe.torch.load(where, model=model, rng=False) is None


def test_metric_with_a_graph_is_sent_without_a_warning(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    import torch

    as_rank()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        troupe.step(1, loss=torch.tensor(2.0, requires_grad=True) * 2)
    assert shim.last("report")["metrics"] == {"loss": 4.0}
