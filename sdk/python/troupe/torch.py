"""What the helper does for PyTorch: exact resume with DDP, and plain checkpoint files.

The only module of the package that imports torch.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _log
from .asynchronous import AsyncCheckpoint
from .checkpoint import Checkpoint
from .context import session
from .errors import CheckpointError, TroupeError
from .staging import Sink


def prime(ddp: Any, example: Any, loss: Callable[[Any], Any] | None = None) -> None:
    """Bring a DDP model into the state in which every later step sums in the same order.

    DDP groups gradients into buckets, and rebuilds the groups after the first backward
    pass in the order in which gradients came. A resumed process would run its first step
    with other groups than an uninterrupted one, and end with other weights. This runs
    forward, backward and a second forward, which rebuilds the groups, then drops the
    gradients and restores buffers and random generators.

    Call it on every rank right after wrapping the model, before any state is loaded, in
    runs that resume and in runs that do not.

    Args:
        ddp: the model wrapped by DistributedDataParallel; anything else is left alone.
        example: an input as in training: a tensor, a tuple of positional arguments, or a
            mapping of keyword arguments. Its values do not matter, its shape and dtype do.
        loss: turns the model's output into a scalar. Without it the sum of all
            floating-point outputs is used.

    Raises:
        TroupeError: the model holds gradients, so that training has begun already; or the
            output has nothing to differentiate.
    """
    if not isinstance(ddp, DistributedDataParallel):
        _log.debug("prime: %s is not wrapped by DistributedDataParallel", type(ddp).__name__)
        return
    if any(p.grad is not None for p in ddp.parameters()):
        raise TroupeError("prime: the model holds gradients; prime it before the first step")
    generators = rng_state()
    buffers = [(b, b.detach().clone()) for b in ddp.buffers()]
    try:
        scalar = (loss or _total)(_call(ddp, example))
        if scalar is None:
            raise TroupeError("prime: the model's output has no floating-point tensor; give a loss")
        scalar.backward()
        _call(ddp, example)  # DDP rebuilds its buckets at the start of this pass
    finally:
        ddp.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        set_rng_state(generators)


def _call(module: Any, example: Any) -> Any:
    if isinstance(example, Mapping):
        return module(**example)
    if isinstance(example, (tuple, list)):
        return module(*example)
    return module(example)


def _total(output: Any) -> Any:
    """Return the sum of every floating-point tensor in a nested output, or None."""
    if isinstance(output, torch.Tensor):
        return output.float().sum() if output.is_floating_point() else None
    if isinstance(output, Mapping):
        parts: Sequence[Any] = list(output.values())
    elif isinstance(output, (tuple, list)):
        parts = output
    else:  # a dataclass of tensors
        parts = list(vars(output).values()) if hasattr(output, "__dict__") else []
    sums = [s for s in map(_total, parts) if s is not None]
    return sum(sums[1:], sums[0]) if sums else None


def rng_state() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and torch's generators, CUDA's where in use.

    It consists of plain values and tensors, so that torch.load accepts it with
    ``weights_only=True``.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss], "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")  # not imported: nobody drew from it
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["numpy"] = [
            str(kind),
            [int(k) for k in keys],
            int(position),
            int(has_gauss),
            float(cached),
        ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore what rng_state() returned.

    Raises:
        CheckpointError: it has the state of another number of GPUs than are here.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))
    if "cuda" in state:
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if len(state["cuda"]) != here:
            raise CheckpointError(f"generators of {len(state['cuda'])} GPUs were saved, {here} are here")
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def _without_crc() -> Iterator[None]:
    """Let torch.save skip the zip format's checksums: the shim hashes every file itself."""
    module = torch.serialization
    if not hasattr(module, "set_crc32_options"):  # torch before 2.6
        yield
        return
    before = module.get_crc32_options()
    module.set_crc32_options(False)
    try:
        yield
    finally:
        module.set_crc32_options(before)


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes as torch copies tensors: with its threads, and without the interpreter's lock."""
    into = torch.frombuffer(target, dtype=torch.uint8)
    into.copy_(torch.frombuffer(source, dtype=torch.uint8))


@functools.cache
def _quiet() -> None:
    """Let torch say once, to nobody, that a buffer which is only read cannot be written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"x", dtype=torch.uint8)


def write(state: Any, to: Any) -> None:
    """Write one object by torch.save, without the zip format's checksums.

    Args:
        state: what torch.save takes.
        to: a path, or a file open for writing, as ``ck.open("ema.pt")`` returns.
    """
    if isinstance(to, Sink):
        _quiet()
        to.copy = _copy
    with _without_crc():
        torch.save(state, to)


def read(path: str | os.PathLike[str]) -> Any:
    """Read what write() wrote, onto the CPU, accepting tensors and plain values only."""
    return torch.load(path, map_location="cpu", weights_only=True)


def save(
    ck: Checkpoint,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    data: Any = None,
    rng: bool = True,
    replicated: bool = True,
) -> None:
    """Write the state of a training step as separate files of a checkpoint.

    In an asynchronous one everything is copied before this returns; the files are the
    same, and load() and torch.load read them.

    Args:
        ck: the open checkpoint.
        model: a module (DDP is unwrapped); its state goes to ``model.pt``.
        optimizer: goes to ``optimizer.pt``.
        scheduler: goes to ``scheduler.pt``.
        data: position in the data, a plain value that does not depend on the number of
            ranks; goes to ``data.pt`` and into the manifest as the data cursor.
        rng: write this rank's generators to ``rng.pt``.
        replicated: every rank holds the same model (DDP), so that rank 0 alone writes it,
            and optimizer and scheduler. False: each rank writes its own.
    """
    ck.framework("torch", str(torch.__version__))
    if data is not None:
        ck.cursor = data
    files: dict[str, Any] = {}
    if not replicated or session().identity.rank == 0:
        for name, part in (("model", _unwrap(model)), ("optimizer", optimizer), ("scheduler", scheduler)):
            if part is not None:
                files[name] = part.state_dict()
        if data is not None:
            files["data"] = data
    if rng:
        files["rng"] = rng_state()
    _put(ck, {f"{name}.pt": state for name, state in files.items()})


def _put(ck: Checkpoint, files: Mapping[str, Any]) -> None:
    """Write objects as files of this rank."""
    if isinstance(ck, AsyncCheckpoint):
        ck.reserve(sum(_weight(state) for state in files.values()))
        for name, state in files.items():
            with ck.open(name) as f:
                write(state, f)
    else:
        for name, state in files.items():
            write(state, ck.path / name)


# What a file has besides its tensors' bytes, and one tensor besides its own: more is no
# harm, less costs one more copy of the first save.
_FILE_BYTES, _TENSOR_BYTES = 64 << 10, 1 << 10


def _weight(state: Any) -> int:
    """Estimate the bytes of a file from above: every storage once, and its description."""
    storages: dict[int, int] = {}
    count, todo = 0, [state]
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            count += 1
            local = value.to_local() if hasattr(value, "to_local") else value  # DTensor
            if local.layout == torch.strided:
                storage = local.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, Mapping):
            todo += value.values()
        elif isinstance(value, (tuple, list)):
            count += 1
            todo += [v for v in value if not isinstance(v, (int, float, str))]
    return sum(storages.values()) + _FILE_BYTES + _TENSOR_BYTES * count


def load(
    directory: Path,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    rng: bool = True,
    replicated: bool = True,
) -> Any:
    """Load what save() wrote, from ``troupe.resume_point()``; returns the data position.

    The arguments mean what they mean in save(). What is asked for and is not there is an
    error, never a default; with another number of ranks than saved, ``rng=False`` leaves
    the generators as they are.

    Raises:
        CheckpointError: a file is missing.
    """
    rank = session().identity.rank
    own = directory / f"rank-{rank}"
    source = directory / "rank-0" if replicated else own
    for name, part in (("model", _unwrap(model)), ("optimizer", optimizer), ("scheduler", scheduler)):
        if part is not None:
            part.load_state_dict(_require(source / f"{name}.pt"))
    position = source / "data.pt"
    data = read(position) if position.exists() else None
    if rng:  # last, so that nothing that loading draws is kept
        set_rng_state(_require(own / "rng.pt"))
    return data


def save_sharded(ck: Checkpoint, state: dict[str, Any]) -> None:
    """Write a sharded state into ``ck.dcp_path`` by torch.distributed.checkpoint.

    Every rank calls it with the same keys; DTensor and ShardedTensor are written as the
    shards they are, and load_sharded() reads them with any number of ranks. The ranks of
    the default process group have to be those of the job. In an asynchronous checkpoint
    the files are written before this returns, and made durable and hashed afterwards.

    Args:
        ck: the open checkpoint; its directory is new, so that nothing is overwritten.
        state: as ``torch.distributed.checkpoint.state_dict.get_state_dict`` makes it.

    Raises:
        CheckpointError: the directory holds a checkpoint already, or the process group
            has other ranks than the job.
        CheckpointException: of torch; a rank could not write. All ranks raise it.
    """
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp

    me, group = session().identity, dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
    if (rank, world) != (me.rank, me.world):
        raise CheckpointError(
            f"rank {rank} of {world} in the process group is rank {me.rank} of {me.world} in the job; "
            "the files of a sharded state are named after the rank"
        )
    # torch would overwrite shards first and their index last: a mixture, if cut off.
    if (ck.dcp_path / ".metadata").exists():
        raise CheckpointError(f"{ck.dcp_path} holds a sharded state already; one checkpoint has one")
    ck.framework("torch", str(torch.__version__))
    # The shim makes the files durable; twice would only cost.
    writer = dcp.FileSystemWriter(ck.dcp_path, single_file_per_rank=True, sync_files=False)
    with _alone(not group):
        dcp.save(state, storage_writer=writer, no_dist=not group)


@contextmanager
def _alone(alone: bool) -> Iterator[None]:
    """Keep torch from warning that one process saves alone, where it does."""
    with warnings.catch_warnings():
        if alone:
            warnings.filterwarnings("ignore", message="torch.distributed is")
        yield


def load_sharded(directory: Path, state: dict[str, Any]) -> None:
    """Read what save_sharded() wrote into the tensors of ``state``, with any number of ranks.

    Args:
        directory: ``troupe.resume_point()``.
        state: every key has to be in the checkpoint, with its shape; nothing is left as
            it was, and no default is filled in.

    Raises:
        CheckpointError: there is no sharded state, or a key or shape of it is missing.
            All ranks raise it.
    """
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp

    where = directory / "shared"
    if not (where / ".metadata").is_file():
        raise CheckpointError(f"{where} holds no sharded state; it was saved by other means", code="io")
    alone = not dist.is_initialized()
    try:
        with _alone(alone):
            dcp.load(state, storage_reader=dcp.FileSystemReader(where), no_dist=alone)
    except dcp.CheckpointException as e:
        causes = "; ".join(sorted({str(cause) for cause, _ in e.failures.values()}))
        raise CheckpointError(f"{where} does not hold what is asked for: {causes}", code="io") from e
    except (RuntimeError, ValueError) as e:  # without a process group
        raise CheckpointError(f"{where} does not hold what is asked for: {e}", code="io") from e


def _require(path: Path) -> Any:
    if not path.exists():
        raise CheckpointError(
            f"{path} is not in the checkpoint; it was saved without it or by other ranks", code="io"
        )
    return read(path)


def _unwrap(model: Any) -> Any:
    return model.module if isinstance(model, DistributedDataParallel) else model
