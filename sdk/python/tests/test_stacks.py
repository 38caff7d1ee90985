"""A rank tells where it stands, on a signal, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from troupe import stacks

NUMBER = 46


def told(process: subprocess.Popen[str], file: Path, word: str) -> str:
    """Ask until the word is in the answer."""
    for _ in range(200):
        file.write_bytes(b"")
        os.kill(process.pid, NUMBER)
        for _ in range(20):
            time.sleep(0.05)
            text = file.read_text()
            if word in text:
                return text
    pytest.fail(f"no {word!r}; the last answer: {text}")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("while True: pass", "in spins"),  # holds the GIL
        ("threading.Lock().acquire() and threading.Event().wait()", "in wait"),
        ("os.read(os.pipe()[0], 1)", "in spins"),  # waits in a system call
    ],
)
def test_stacks_are_told(tmp_path: Path, body: str, word: str) -> None:
    file = tmp_path / "stack"
    script = f"""
import os, threading
from troupe import stacks
assert stacks.register({str(file)!r}, {NUMBER})
print("ready", flush=True)
def spins():
    {body}
spins()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            text = told(process, file, word)
            assert "most recent call first" in text
            assert process.poll() is None
        finally:
            process.kill()


def test_a_handler_of_the_script_stays(tmp_path: Path) -> None:
    def mine(_number: int, _frame: object) -> None:
        pass

    before = signal.signal(NUMBER, mine)
    try:
        assert not stacks.register(str(tmp_path / "stack"), NUMBER)
        assert signal.getsignal(NUMBER) is mine
        assert not (tmp_path / "stack").exists()
    finally:
        signal.signal(NUMBER, before)


def test_no_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "stack").symlink_to(tmp_path / "target")
    assert not stacks.register(str(tmp_path / "stack"), NUMBER)
    assert not stacks.register(str(tmp_path / "missing" / "stack"), NUMBER)
