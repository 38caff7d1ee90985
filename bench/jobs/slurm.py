"""Slurm as the peer of small gangs: its controller and eight nodes on this machine.

Debian's `slurm-wlm` and `munge`, as root. The configuration is the fastest of the shipped
ones for this: no interval between two looks of the scheduler, no task plugin.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import measure
from measure import BenchError

NODES = 8
NEEDED = ("slurmctld", "slurmd", "munged", "mungekey", "sbatch", "srun", "squeue")
CONF = """ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={dir}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldLogFile={dir}/log/ctld
SlurmdLogFile={dir}/log/%n
SlurmctldPidFile={dir}/ctld.pid
SlurmdPidFile={dir}/%n.pid
SlurmctldPort={port}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0
MaxJobCount=20000
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=32 RealMemory=16000
PartitionName=p Nodes=ALL Default=YES State=UP
"""


def missing() -> str:
    """What keeps Slurm from running here; empty when nothing does."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    lacks = [name for name in NEEDED if shutil.which(name, path=_path()) is None]
    return f"{', '.join(lacks)} not found; install slurm-wlm and munge" if lacks else ""


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class Slurm:
    """A cluster in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        # munged refuses a socket in a folder that only its own user may enter.
        folder.chmod(0o755)
        self.folder = folder
        self.env = measure.plain_env() | {"PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
        self.script = folder / "true.sh"
        self.script.write_text("#!/bin/sh\ntrue\n")

    def command(self, *argv: str, limit: float = 120) -> str:
        """Runs one command of it."""
        done = subprocess.run(argv, check=False, env=self.env, capture_output=True, text=True, timeout=limit)
        if done.returncode != 0:
            raise BenchError(f"`{' '.join(argv[:2])}` ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def up(self) -> None:
        """Starts munge, the controller and the nodes; returns when all nodes are idle."""
        d = self.folder
        for name in ("state", "spool", "log"):
            (d / name).mkdir()
        self.command("mungekey", "-c", "-k", str(d / "munge.key"))
        files = {
            "key-file": "munge.key",
            "socket": "munge.sock",
            "pid-file": "munge.pid",
            "log-file": "munge.log",
        }
        self.command(
            "munged", "--force", *(f"--{k}={d / v}" for k, v in files.items()), f"--seed-file={d}/munge.seed"
        )
        port = _free_ports(NODES + 1)
        text = CONF.format(
            host=socket.gethostname().split(".")[0],
            dir=d,
            port=port,
            nodes=NODES,
            first=port + 1,
            last=port + NODES,
        )
        (d / "slurm.conf").write_text(text)
        self.command("slurmctld")
        for i in range(NODES):
            self.command("slurmd", "-N", f"n{i + 1}")
        deadline = time.monotonic() + 60
        while self.command("sinfo", "-h", "-o", "%D %t").strip() != f"{NODES} idle":
            if time.monotonic() > deadline:
                raise BenchError(f"Slurm's nodes are not idle after 60 s: {self.command('sinfo', '-h')}")
            time.sleep(0.2)

    def down(self) -> None:
        """Ends what was started."""
        for path in (*self.folder.glob("n*.pid"), self.folder / "ctld.pid", self.folder / "munge.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)
        time.sleep(1)
        measure.end_all(str(self.folder))

    def gang(self, nodes: int, ranks: int) -> float:
        """Milliseconds of one `srun` of `true`."""
        begin = time.monotonic()
        self.command("srun", f"-N{nodes}", f"-n{ranks}", "true")
        return (time.monotonic() - begin) * 1000

    def queue(self, jobs: int, nodes: int, ranks: int) -> float:
        """Gangs in a second, from the first submit until nothing is left in the queue."""
        begin = time.monotonic()
        for _ in range(jobs):
            self.command("sbatch", "-Q", f"-N{nodes}", f"-n{ranks}", "-o", "/dev/null", str(self.script))
        while self.command("squeue", "-h"):
            time.sleep(0.1)
        return jobs / (time.monotonic() - begin)


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(17000, 60000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    s = stack.enter_context(socket.socket())
                    s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise BenchError(f"no {count} free ports in a row")


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Slurm, up; afterwards nothing of it is left."""
    s = Slurm(folder)
    try:
        s.up()
        yield s
    finally:
        s.down()
