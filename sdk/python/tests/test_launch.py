"""The launcher becomes the binary: the same process, with every word and the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

FAKE = """#!{python}
import json, os, sys
print(json.dumps({{"argv": sys.argv, "pid": os.getpid()}}))
sys.exit(37)
"""


def fake_binary(folder: Path) -> Path:
    binary = folder / "troupe"
    binary.write_text(FAKE.format(python=sys.executable))
    binary.chmod(0o755)
    return binary


def start(module: str, *words: str, binary: Path) -> tuple[int, int, dict[str, Any], str]:
    env = {**os.environ, "TROUPE_BIN": str(binary), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(timeout=60)
    return process.pid, process.returncode, json.loads(out) if out else {}, err


def test_becomes_the_binary(tmp_path: Path) -> None:
    """The same process: its code, its signals and its pid are the binary's."""
    words = ["--nproc-per-node=2", "-r", "3", "--", "train.py", "", "--python=x", "-h", "ä\n"]
    pid, code, said, err = start("troupe.launch", *words, binary=fake_binary(tmp_path))
    assert code == 37
    assert said["pid"] == pid
    assert said["argv"][1:] == ["launch", f"--python={sys.executable}", *words]
    assert err == ""


def test_module_becomes_the_binary(tmp_path: Path) -> None:
    pid, code, said, _ = start("troupe", "status", "-o", "json", binary=fake_binary(tmp_path))
    assert (code, said["pid"], said["argv"][1:]) == (37, pid, ["status", "-o", "json"])


@pytest.mark.parametrize("module", ["troupe", "troupe.launch"])
def test_no_binary(tmp_path: Path, module: str) -> None:
    _, code, said, err = start(module, "train.py", binary=tmp_path / "none")
    assert code == 78
    assert said == {}
    assert err.startswith("error: TROUPE_BIN=")
