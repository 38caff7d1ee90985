"""What the torch helpers promise, on a real cluster: jobs of one run with changing numbers of ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

pytestmark = pytest.mark.torch

JOBS = Path(__file__).resolve().parent / "jobs"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="troupe-") as name:  # short: sockets live below
        made = Cluster(Path(name))
        try:
            made.up()
            yield made
        finally:
            made.down()


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sharded_state_changes_hands(cluster: Cluster, tmp_path: Path) -> None:
    """FSDP2 with 4, 2 and 3 ranks: what is loaded is, bit for bit, what was saved."""
    out = tmp_path / "out.jsonl"
    for world in (4, 2, 3):
        bad = () if world == 4 else ("--bad", "nobody")
        cluster.run("sharded", world, JOBS / "sharded.py", "--out", str(out), *bad)
    found = rows(out)
    saved = {r["step"]: r["digest"] for r in found if r["what"] == "saved"}
    assert sorted(saved) == [1, 2, 3, 4, 5, 6]
    assert len(set(saved.values())) == 6
    resumed = [(r["world"], r["step"]) for r in found if r["what"] == "resumed"]
    assert resumed == [(2, 2), (3, 4)]
    for r in found:
        assert r["digest"] == saved[r["step"]], r
    for ck in cluster.checkpoints("sharded"):
        folder = Path(ck["dir"])
        manifest = json.loads((folder / "manifest.json").read_text())
        named = {f["path"] for f in manifest["files"]}
        assert named == {str(p.relative_to(folder)) for p in folder.glob("shared/*")} | {
            str(p.relative_to(folder)) for p in folder.glob("shared/.*")
        }
        assert named == {"shared/.metadata"} | {f"shared/__{r}_0.distcp" for r in range(ck["world"])}


def test_every_sample_once_an_epoch(cluster: Cluster, tmp_path: Path) -> None:
    """Killed twice with three ranks, then two ranks take over, with loaders that prefetch."""
    out = ("--out", str(tmp_path))
    cluster.run("stream", 3, JOBS / "stream.py", *out, "--epochs", "2", "--kill", "8", "13")
    cluster.run("stream", 2, JOBS / "stream.py", *out, "--epochs", "4")
    notes = [r for rank in range(3) for r in rows(tmp_path / str(rank))]
    assert len({r["generation"] for r in notes}) == 4, "three attempts of one job, one of the next"
    # What counts of a step is what its last attempt did.
    newest: dict[int, int] = {}
    for r in notes:
        newest[r["step"]] = max(newest.get(r["step"], 0), r["generation"])
    done = [r for r in notes if r["generation"] == newest[r["step"]]]
    assert len(done) < len(notes), "no step was made again: nothing was tested"
    assert sorted(newest) == list(range(1, max(newest) + 1))
    for epoch in range(4):
        seen = Counter(n for r in done if r["epoch"] == epoch for n in r["samples"])
        assert seen == Counter(range(51)), f"epoch {epoch}"
