"""Ray's side of the placement groups: create, ready, remove. Prints one JSON object.

`ray_groups.py CYCLES CLIENTS CPU GPUS FOLDER`, in an environment with Ray. The cluster is a
local one with as many CPUs and devices as the other side's; a client is a thread.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import ray
from ray.util.placement_group import placement_group, remove_placement_group

BUNDLES = 4


def cycles(count: int, clients: int, bundle: dict[str, float]) -> dict[str, object]:
    """What a run of cycles took, divided among clients that each wait for every answer."""
    create: list[float] = []
    lock = threading.Lock()
    left = count

    def work() -> None:
        nonlocal left
        while True:
            with lock:
                if left == 0:
                    return
                left -= 1
            begin = time.perf_counter()
            group = placement_group([bundle] * BUNDLES, strategy="PACK")
            if not group.wait(60):
                raise SystemExit("a placement group was not ready after 60 s")
            took = (time.perf_counter() - begin) * 1000
            remove_placement_group(group)
            with lock:
                create.append(took)

    begin = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seconds = time.perf_counter() - begin
    if len(create) != count:
        raise SystemExit(f"{len(create)} of {count} cycles ended")
    return {"create": create, "seconds": seconds}


def main() -> None:
    count, clients, cpu, gpus, folder = sys.argv[1:]
    bundle = {k: v for k, v in (("CPU", int(cpu) / 1000), ("GPU", int(gpus))) if v}
    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=8,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
    )
    cycles(20, 1, bundle)
    json.dump(cycles(int(count), int(clients), bundle), sys.stdout)
    ray.shutdown()


if __name__ == "__main__":
    main()
