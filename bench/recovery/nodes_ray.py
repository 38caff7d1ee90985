"""Ray losing nodes: seconds until an actor answers from another one, in JSON lines.

Started with the folder of the trial, in Ray's environment. The actor may always be
started again and its calls be tried again, which is what Ray offers for this. Three nodes
are taken away in turn: of the first, the raylet alone is killed, as an agent is on the
other side, and the line says whether the actor was started again; of the second all
processes are killed; of the third all are stopped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

FOLDER = Path(sys.argv[1])
LIMIT = 150.0  # seconds for one loss


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Where:
    """What has to run somewhere."""

    def am_i(self) -> tuple[str, int]:
        """Node and process."""
        return ray.get_runtime_context().get_node_id(), os.getpid()


def tree(root: int) -> list[int]:
    """A process and all of its descendants: a raylet's are its agents and workers."""
    children: dict[int, list[int]] = {}
    for p in Path("/proc").iterdir():
        if not p.name.isdigit():  # self is a link to one that is
            continue
        try:
            parent = int((p / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(p.name))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> None:
    """All three losses."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "temp_dir": str(FOLDER / "ray")},
    )
    nodes: list[Any] = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    where = Where.remote()
    node, pid = ray.get(where.am_i.remote())
    for what in ("agent killed", "node killed", "node cut off"):
        victim = next(n for n in nodes if n.node_id == node)
        raylet = next(p[0].process.pid for k, p in victim.all_processes.items() if "raylet" in k)
        hit = [raylet] if what == "agent killed" else tree(raylet)
        if what != "agent killed" and pid not in hit:
            raise SystemExit(f"the actor's process {pid} is none of the node's: {hit}")
        before, begin = (node, pid), time.monotonic()
        for p in hit:
            os.kill(p, signal.SIGSTOP if what == "node cut off" else signal.SIGKILL)
        while (node, pid) == before and time.monotonic() - begin < LIMIT:
            if what == "agent killed" and time.monotonic() - begin > LIMIT / 5 and runs(pid):
                break  # it lives on
            try:
                node, pid = ray.get(where.am_i.remote(), timeout=LIMIT)
            except ray.exceptions.RayError:
                time.sleep(0.5)
        took = time.monotonic() - begin
        if what != "agent killed" and node == before[0]:
            raise SystemExit(f"{what}: the actor did not come back within {LIMIT:.0f} s")
        with (FOLDER / "nodes.jsonl").open("a") as out:
            line = {"what": what, "took": took, "restarts": int((node, pid) != before)}
            out.write(json.dumps(line) + "\n")
        if what != "node cut off":
            nodes = [n for n in nodes if n is not victim] + [cluster.add_node(num_cpus=1)]
            time.sleep(3)


if __name__ == "__main__":
    main()
