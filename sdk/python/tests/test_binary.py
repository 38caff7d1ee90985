"""Where the binary is looked for, and that PATH is not among the places."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

import troupe
from troupe import binary


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_variable_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = executable(tmp_path / "troupe")
    monkeypatch.setenv("TROUPE_BIN", str(path))
    assert troupe.find_binary() == str(path)


@pytest.mark.parametrize("kind", ["missing", "folder", "not executable"])
def test_bad_variable_is_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / "troupe"
    if kind == "folder":
        path.mkdir()
    elif kind == "not executable":
        path.write_text("")
    monkeypatch.setenv("TROUPE_BIN", str(path))
    monkeypatch.setattr(binary, "candidates", lambda: [str(executable(tmp_path / "other" / "troupe"))])
    with pytest.raises(troupe.BinaryNotFound, match="not an executable file") as e:
        troupe.find_binary()
    assert e.value.tried == [str(path)]


def test_order_and_places() -> None:
    places = binary.candidates()
    assert places[0] == str(Path(sysconfig.get_path("scripts")) / "troupe")
    if sys.prefix != sys.base_prefix:
        assert places[1].startswith(sys.base_prefix)
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    assert str(Path(user) / "troupe") in places
    checkout = Path(binary.__file__).resolve().parents[3]
    assert places[-1] == str(checkout / "bin" / "troupe")
    assert len(set(places)) == len(places)


def test_installed_package_does_not_look_into_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    monkeypatch.setattr(binary, "__file__", str(site / "troupe" / "binary.py"))
    places = binary.candidates()
    assert str(tmp_path / "bin" / "troupe") in places  # pip install --prefix
    assert str(site / "bin" / "troupe") in places  # pip install --target


def test_not_found_lists_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = executable(tmp_path / "path" / "troupe")
    monkeypatch.setenv("PATH", str(here.parent))
    tried = [str(tmp_path / "a" / "troupe"), str(tmp_path / "b" / "troupe")]
    monkeypatch.setattr(binary, "candidates", lambda: tried)
    with pytest.raises(troupe.BinaryNotFound) as e:
        troupe.find_binary()
    assert e.value.tried == tried
    assert e.value.code == "binary"
    assert all(path in str(e.value) for path in tried)
    executable(Path(tried[1]))
    assert troupe.find_binary() == tried[1]
