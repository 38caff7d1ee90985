"""The forkserver's imports: what it keeps, and what it must not share between ranks."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

HOOK = Path(__file__).resolve().parents[1] / "troupe" / "_warm"
MODULES = {
    "fine": "import os; os.environ.get('FINE_MODE')",
    "threaded": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "ranked": "import os; RANK = os.environ.get('RANK')",
    "greedy": "import os; ALL = dict(os.environ)",
    "broken": "raise ValueError('broken')",
    "dying": "import os; os.abort()",
}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with modules of ours among the installed ones."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    packages = next(home.glob("lib/python*/site-packages"))
    for name, text in MODULES.items():
        (packages / f"{name}.py").write_text(text + "\n")
    return home / "bin" / "python"


def prepare(python: Path, folder: Path, script: str, *preload: str, dropped: tuple[str, ...] = ()) -> Any:
    """Start a forkserver, give it its order, and return what it says last and its end."""
    path = folder / "warm.sock"
    (folder / "train.py").write_text(script)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        env = {"PYTHONPATH": str(HOOK), "TROUPE_WARM": str(path), "PATH": os.environ["PATH"]}
        p = subprocess.Popen([python, "train.py"], env=env, cwd=folder, stdout=subprocess.PIPE)
        listener.settimeout(60)
        peer, _ = listener.accept()
    with peer:
        peer.settimeout(60)
        order = {"op": "prepare", "preload": preload, "learned": [], "dropped": dropped}
        order |= {"script": "train.py", "safe": False, "own": ["RANK"]}
        body = json.dumps(order).encode()
        peer.sendall(struct.pack(">I", len(body)) + body)
        last: dict[str, Any] = {}
        while last.get("state") in (None, "importing"):
            head = peer.recv(4, socket.MSG_WAITALL)
            if len(head) < 4:
                break
            last = json.loads(peer.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL))
    out, _ = p.communicate(timeout=60)
    assert out == b"", "the script must not run in the forkserver"
    return last, p.returncode


def test_ready(interpreter: Path, tmp_path: Path) -> None:
    last, code = prepare(interpreter, tmp_path, "import fine\nprint('ran')", "json")
    assert (last["state"], code) == ("ready", 0)
    assert "FINE_MODE" in last["reads"] and last["missing"] == [] and last["modules"] > 0


@pytest.mark.parametrize(
    ("name", "why"), [("threaded", "thread"), ("ranked", "RANK"), ("greedy", "whole environment")]
)
def test_what_ranks_cannot_share(interpreter: Path, tmp_path: Path, name: str, why: str) -> None:
    script = f"import fine, {name}\nprint('ran')"
    last, _ = prepare(interpreter, tmp_path, script)
    assert (last["state"], last["module"]) == ("tainted", name) and why in last["reason"]
    again = tmp_path / "again"
    again.mkdir()
    last, code = prepare(interpreter, again, script, dropped=(name,))
    assert (last["state"], code) == ("ready", 0)


def test_a_module_that_fails_is_left_out(interpreter: Path, tmp_path: Path) -> None:
    last, _ = prepare(interpreter, tmp_path, "import broken, fine\nprint('ran')")
    assert last["state"] == "ready" and [m["module"] for m in last["missing"]] == ["broken"]


def test_a_base_module_that_fails_ends_it(interpreter: Path, tmp_path: Path) -> None:
    last, code = prepare(interpreter, tmp_path, "print('ran')", "broken")
    assert (last["state"], last["module"], code) == ("failed", "broken", 1)


def test_the_module_that_kills_it_is_known(interpreter: Path, tmp_path: Path) -> None:
    last, code = prepare(interpreter, tmp_path, "import dying\nprint('ran')")
    assert (last["state"], last["module"]) == ("importing", "dying") and code < 0


def test_the_scripts_own_modules_are_not_imported(interpreter: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('mine ran')\n")
    last, _ = prepare(interpreter, tmp_path, "import mine, fine\nprint('ran')")
    assert last["state"] == "ready"


def test_a_process_that_inherits_the_folder_is_no_forkserver() -> None:
    """Without a socket the script runs, with nothing of the folder left to see."""
    show = "import sys, os; print([p for p in sys.path if 'warm' in p], os.environ.get('PYTHONPATH'))"
    env = {"PYTHONPATH": f"{HOOK}:/elsewhere", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", show], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[] /elsewhere\n"
