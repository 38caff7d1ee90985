"""A real cluster in a folder, for tests that need more than a fake shim: head, agent, shims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BINARY = Path(os.environ.get("TROUPE_BIN") or ROOT.parents[1] / "bin" / "troupe").resolve()
LIMIT_S = 300  # only to end a test that hangs


class Cluster:
    """Driven through the command line, as a user does."""

    def __init__(self, folder: Path) -> None:
        if not BINARY.is_file():
            pytest.fail(f"{BINARY} is not there: run `make build`")
        self.folder, self.state = folder, folder / "state"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
        self.env["XDG_CONFIG_HOME"] = str(folder / "config")

    def command(self, *args: str, code: int | None = 0) -> str:
        """Run one command; return what it printed."""
        done = subprocess.run(
            [str(BINARY), *args], check=False, env=self.env, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert code is None or done.returncode == code, f"troupe {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self) -> None:
        self.command("up", "-d", "--state", str(self.state), "--port", "0")

    def down(self) -> None:
        self.command("down", "--state", str(self.state), "--yes", code=None)

    def run(self, name: str, ranks: int, script: Path, *args: str, flags: tuple[str, ...] = ()) -> str:
        """Run a Python job to its good end; return its output."""
        env = [f"PYTHONPATH={ROOT}", "OMP_NUM_THREADS=1"]
        if path := os.environ.get("LD_LIBRARY_PATH"):
            env.append(f"LD_LIBRARY_PATH={path}")
        return self.command(
            *("run", "--run", name, "--name", name, "--ranks", str(ranks), *flags),
            *(word for value in env for word in ("--env", value)),
            *("--", sys.executable, "-u", str(script), *args),
        )

    def checkpoints(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.command("checkpoint", "list", run, "-o", "json"))[
            "items"
        ]
        return found
