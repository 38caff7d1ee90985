"""Which samples a rank trains on next, whatever restarts and resizes happen.

A position in the data is a seed, an epoch and a number of samples; the number of ranks is
no part of it. What lives here: the sampler that deals batches out of such a position, for
any loader. What may not: loading of data. torch is imported when an order is drawn, and
not before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from .context import session
from .errors import CheckpointError, TroupeError

_Item = TypeVar("_Item")

LAST = ("short", "wrap", "drop")
VERSION = 1
_MOST = 1 << 48  # samples, and epochs; a position has to fit 64 bits with room to spare


class Sampler:
    """Deals every sample of a dataset out exactly once an epoch, over all ranks together.

    Give it to a DataLoader as ``batch_sampler``, and take the batches through
    ``sampler.consume(loader)``, which moves the position by what was taken and not by what
    workers have prefetched::

        sampler = troupe.data.Sampler(len(dataset), batch=256, seed=7)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        if saved is not None:
            sampler.load_state_dict(troupe.torch.load(saved, model=model))
        for epoch in range(sampler.epoch, epochs):
            for inputs, labels in sampler.consume(loader):
                train(inputs, labels)
                ...
                troupe.torch.save(ck, model=model, data=sampler.state_dict())

    A batch has ``batch`` samples over all ranks, so that a step means the same for any
    number of them; rank r of w gets those at positions r, r + w, r + 2w … of it. The same
    position gives the same batch with every number of ranks.

    Attributes:
        epoch: number of the epoch of the next batch, from 0.
        index: samples of this epoch that were taken, over all ranks.
    """

    def __init__(
        self,
        size: int,
        batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        last: str = "short",
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """Start at the first sample of epoch 0.

        Args:
            size: samples of the dataset.
            batch: samples of one batch, over all ranks.
            seed: of the order, which is another one in every epoch.
            shuffle: False deals them out in the dataset's own order.
            last: what becomes of the samples at the end of an epoch that fill no batch.
                ``"short"``: they are a smaller batch, and ranks may get one sample more or
                less than others. ``"wrap"``: the batch is filled with the first samples of
                the next epoch. ``"drop"``: they are left out in this epoch. None of them
                repeats a sample.
            rank: of this process; by default Troupe's or torchrun's.
            world: number of ranks; by default Troupe's or torchrun's.

        Raises:
            TroupeError: an argument makes no sense, or a full batch has not a sample for
                every rank.
        """
        identity = session().identity
        self.rank = identity.rank if rank is None else rank
        self.world = identity.world if world is None else world
        for name, value, least in (("size", size, 1), ("batch", batch, 1), ("seed", seed, 0)):
            if not _whole(value, least):
                raise TroupeError(f"Sampler: {name}={value!r} is no whole number ≥ {least}")
        if not 0 <= self.rank < self.world:
            raise TroupeError(f"Sampler: rank {self.rank} of {self.world}")
        if last not in LAST:
            raise TroupeError(f"Sampler: last={last!r} is none of {', '.join(LAST)}")
        if batch < self.world:
            raise TroupeError(f"Sampler: a batch of {batch} samples has none for some of {self.world} ranks")
        if last == "drop" and size < batch:
            raise TroupeError(f"Sampler: {size} samples fill no batch of {batch}, and last='drop'")
        self.size, self.batch, self.seed = size, batch, seed
        self.shuffle, self.last = shuffle, last
        self.epoch = self.index = 0
        self._orders: dict[int, Any] = {}

    def __len__(self) -> int:
        """Return the number of batches that begin in what is left of this epoch."""
        left = self.size - self.index
        return left // self.batch if self.last == "drop" else -(-left // self.batch)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's samples of each batch from the position to the end of its epoch.

        The position stays where it is: see consume() and advance().

        Raises:
            TroupeError: ``last="short"`` leaves some rank without a sample in the last
                batch, so that it could not take part in the step.
        """
        rest = (self.size - self.index) % self.batch
        if self.last == "short" and 0 < rest < self.world:
            raise TroupeError(
                f"Sampler: the last batch of epoch {self.epoch} has {rest} samples for {self.world} ranks; "
                "use last='wrap' or last='drop', or another batch"
            )
        epoch, index = self.epoch, self.index
        for _ in range(len(self)):
            yield self._deal(epoch, index)
            index += self.batch

    def consume(self, loader: Iterable[_Item]) -> Iterator[_Item]:
        """Yield what a loader made of this sampler's batches, and move the position with each.

        Inside the loop the position is behind the batch that is being trained on: save it
        after that step.
        """
        for item in loader:
            self.advance()
            yield item

    def advance(self, batches: int = 1) -> None:
        """Move the position by as many batches.

        Raises:
            TroupeError: ``batches`` is no whole number ≥ 0.
        """
        if not _whole(batches, 0):
            raise TroupeError(f"Sampler: advance by {batches!r} batches")
        for _ in range(batches):
            if self.last == "wrap":
                self.epoch, self.index = self._at(self.epoch, self.index + self.batch)
            else:
                self.index = min(self.index + self.batch, self.size)
                left = self.size - self.index
                if left == 0 or (self.last == "drop" and left < self.batch):
                    self.epoch, self.index = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position: JSON, the same on every rank, good for any number of them."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "last": self.last,
            "size": self.size,
            "epoch": self.epoch,
            "index": self.index,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position. Batch and number of ranks may have changed; nothing else may.

        Raises:
            CheckpointError: it is no position, or one of another dataset, order or rule;
                the position here stays.
        """
        mine = self.state_dict()
        if not isinstance(state, Mapping) or set(state) != set(mine):
            raise CheckpointError(f"not the position of a Sampler: {str(state)[:200]!r}")
        for name in ("version", "seed", "shuffle", "last", "size"):
            if type(state[name]) is not type(mine[name]) or state[name] != mine[name]:
                raise CheckpointError(f"the position has {name}={state[name]!r}, this Sampler {mine[name]!r}")
        epoch, index = state["epoch"], state["index"]
        if not _whole(epoch, 0) or not _whole(index, 0) or index >= self.size:
            raise CheckpointError(f"the position is sample {index!r} of {self.size} in epoch {epoch!r}")
        self.epoch, self.index = epoch, index
        if self.last == "drop" and self.size - index < self.batch:  # the batch has grown
            self.epoch, self.index = epoch + 1, 0

    def _at(self, epoch: int, index: int) -> tuple[int, int]:
        return epoch + index // self.size, index % self.size

    def _deal(self, epoch: int, index: int) -> list[int]:
        """Return this rank's samples of the batch at a position."""
        end = index + self.batch if self.last == "wrap" else min(index + self.batch, self.size)
        own = range(index + self.rank, end, self.world)
        here = [n for n in own if n < self.size]
        dealt = self._order(epoch, here)
        if len(here) < len(own):  # into the next epochs, of which a small dataset has many in a batch
            for n in own[len(here) :]:
                number, at = self._at(epoch, n)
                dealt += self._order(number, [at])
        return dealt

    def _order(self, epoch: int, positions: list[int]) -> list[int]:
        """Return the samples at positions of an epoch."""
        if not self.shuffle:
            return positions
        if epoch not in self._orders:
            import torch

            # Of the digest and not of a sum: seeds and epochs next to each other must not meet.
            name = hashlib.blake2b(f"{self.seed}/{epoch}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(name, "big") >> 1)
            order = torch.randperm(self.size, generator=generator)
            # Two are enough: a batch begins in one epoch and ends in the next.
            self._orders = {n: o for n, o in self._orders.items() if n == epoch - 1} | {epoch: order}
        order = self._orders[epoch]
        return [int(n) for n in order[positions].tolist()] if positions else []


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _MOST
