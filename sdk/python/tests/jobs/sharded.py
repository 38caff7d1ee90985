"""A rank of a sharded training (FSDP2 on the CPU); every attempt may have another number of ranks.

Writes a line of JSON to --out for each step it saved or resumed, with the digest of the
whole state, so that a test can compare across numbers of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import troupe
import troupe.torch


def digest(state: Any, sha: Any = None) -> str:
    """Hash every tensor of a state as a whole, and every number."""
    sha = sha or hashlib.sha256()
    if isinstance(state, dict):
        for key in sorted(state, key=str):
            sha.update(str(key).encode())
            digest(state[key], sha)
    elif isinstance(state, (list, tuple)):
        for value in state:
            digest(value, sha)
    elif isinstance(state, torch.Tensor):
        whole = state.full_tensor() if hasattr(state, "full_tensor") else state
        sha.update(whole.detach().contiguous().numpy().tobytes())
    else:
        sha.update(repr(state).encode())
    return str(sha.hexdigest())


def main() -> None:
    """Train from where the run stands, and save twice: one way and the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bad", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    me = troupe.init()
    torch.manual_seed(me.attempt + 100 * me.world)  # what is loaded must not be what was made
    model = nn.Sequential(nn.Linear(10, 37), nn.ReLU(), nn.Linear(37, 5))
    mesh = init_device_mesh("cpu", (me.world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(step: int) -> None:
        x = torch.randn(8, 10, generator=torch.Generator().manual_seed(step * 10 + me.rank))
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def say(what: str, step: int, state: Any) -> None:
        text = digest(state)
        if me.rank == 0:
            with args.out.open("a") as f:
                f.write(json.dumps({"what": what, "world": me.world, "step": step, "digest": text}) + "\n")

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    done = 0
    if (saved := troupe.resume_point()) is not None:
        train(0)  # the optimizer's state exists, and is another one
        found = state()
        if args.bad:
            found["model"][args.bad] = torch.zeros(3)
            try:
                troupe.torch.load_sharded(saved, found)
            except troupe.CheckpointError as e:
                assert args.bad in str(e)
            else:
                raise SystemExit("a key that was never saved was accepted")
            del found["model"][args.bad]
        troupe.torch.load_sharded(saved, found)
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        done = me.resume_step
        say("resumed", done, state())
    for later in (False, True):
        done += 1
        train(done)
        troupe.step(done)
        now = state()
        with troupe.checkpoint(done, strict=True, asynchronous=later) as ck:
            troupe.torch.save_sharded(ck, now)
        say("saved", done, now)
        train(1000)  # after the save; must not show in it
        assert ck.wait(), ck.reason
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
