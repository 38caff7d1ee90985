"""The progress page: the same layout as Go's, and no page but the right one."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

import troupe
from troupe import page

GO = Path(__file__).resolve().parents[3] / "runtime" / "page" / "page.go"


def test_layout_is_that_of_go() -> None:
    text = GO.read_text()
    rows = re.findall(r"^//\s+(\d+)\s+(\w+) u?int64\b", text, re.MULTILINE)
    go = {name.upper(): int(offset) for offset, name in rows}
    assert len(go) >= 11, f"read too little of {GO}: {go}"
    assert {name: getattr(page, name) for name in go} == go
    size = re.search(r"^\tSize\s+= (\d+)$", text, re.MULTILINE)
    version = re.search(r"^\tVersion\s+= (\d+)$", text, re.MULTILINE)
    assert size is not None
    assert version is not None
    assert (int(size[1]), int(version[1])) == (page.SIZE, page.VERSION)
    assert '"TRPG"' in text


def make(
    path: Path, *, magic: bytes = b"TRPG", version: int = 1, generation: int = 5, size: int = 4096
) -> str:
    body = struct.pack("<4sIQ", magic, version, generation)
    path.write_bytes(body.ljust(size, b"\0")[:size])
    return str(path)


def test_fields_are_shared_with_other_readers(tmp_path: Path) -> None:
    path = make(tmp_path / "p")
    fields = page.open_page(path, 5)
    fields[page.STEP // 8] = -2
    fields[page.TIME // 8] = 1 << 40
    data = Path(path).read_bytes()
    assert struct.unpack_from("<q", data, 16)[0] == -2
    assert struct.unpack_from("<q", data, 24)[0] == 1 << 40


def test_generation_with_the_highest_restore_epoch(tmp_path: Path) -> None:
    page.open_page(make(tmp_path / "p", generation=2**64 - 1), 2**64 - 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"magic": b"NOPE"},
        {"version": 2},
        {"generation": 6},
        {"size": 100},
        {"size": 0},
    ],
)
def test_wrong_page_is_refused(tmp_path: Path, bad: dict[str, int]) -> None:
    with pytest.raises(troupe.TroupeError) as e:
        page.open_page(make(tmp_path / "p", **bad), 5)  # type: ignore[arg-type]
    assert e.value.code == "page"


def test_missing_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(troupe.TroupeError, match="cannot map"):
        page.open_page(str(tmp_path / "none"), 5)
