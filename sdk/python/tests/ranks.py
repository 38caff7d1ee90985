"""Starts real ranks of a script under a fake shim, and ends them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fake_shim import FakeShim

from troupe import page

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 240  # only to end a test that hangs


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Ranks:
    """One attempt: all ranks of a script, one process each, output in files."""

    def __init__(self, shim: FakeShim, folder: Path, script: Path, *arguments: str) -> None:
        self.shim, self.folder = shim, folder
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(shim.world):
            env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
            env |= shim.environment(rank)
            env |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "False",
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
            }
            with (folder / f"{rank}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-u", str(script), *arguments],
                        env=env,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def log(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_text(errors="replace")

    def report(self) -> str:
        return "\n".join(f"--- rank {r}:\n{self.log(r)[-2000:]}" for r in range(self.shim.world))

    def wait_for_step(self, rank: int, step: int) -> None:
        """Returns when the rank has published the step in its page."""
        deadline = time.monotonic() + LIMIT_S
        while (seen := self.shim.page_field(rank, page.STEP)) < step:
            assert self.processes[rank].poll() is None, f"ended at step {seen}\n{self.report()}"
            assert time.monotonic() < deadline, f"still at step {seen}\n{self.report()}"
            time.sleep(0.002)

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)
        self.processes[rank].wait(30)

    def kill_all(self) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.kill(rank)

    def wait(self) -> None:
        """Returns when every rank has ended well."""
        deadline = time.monotonic() + LIMIT_S
        try:
            for rank, process in enumerate(self.processes):
                code = process.wait(max(1, deadline - time.monotonic()))
                assert code == 0, f"rank {rank} ended with {code}\n{self.report()}"
        except subprocess.TimeoutExpired:
            raise AssertionError(f"ranks are still running\n{self.report()}") from None
        finally:
            self.kill_all()
