"""Attacks: samples lost or seen twice where an epoch is cut and continued, under any number of ranks."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

from torch.utils.data.distributed import DistributedSampler

from outerloop.torch.loader import ContinuingSampler, seeded_order

if TYPE_CHECKING:
    from outerloop.torch.world import World


class Ranks:
    """A world without processes."""

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank


def sampler(size: int, ranks: int, rank: int, **options: Any) -> ContinuingSampler:
    world: World = Ranks(ranks, rank)  # type: ignore[assignment]
    return ContinuingSampler(range(size), world, **options)


_cases = given(
    size=st.integers(1, 40),
    ranks=st.integers(1, 5),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    data=st.data(),
)


@settings(deadline=None)
@_cases
def test_it_is_torchs_sampler_and_a_cut_epoch_goes_on_where_it_was(
    size: int, ranks: int, epoch: int, shuffle: bool, drop_last: bool, data: st.DataObject
) -> None:
    for rank in range(ranks):
        torchs: Any = DistributedSampler(range(size), ranks, rank, shuffle, 11, drop_last)  # type: ignore[arg-type]
        ours = sampler(size, ranks, rank, shuffle=shuffle, seed=11, drop_last=drop_last)
        torchs.set_epoch(epoch)
        ours.set_epoch(epoch)
        whole = list(torchs)
        assert list(ours) == whole
        taken = data.draw(st.integers(0, len(whole)))
        ours.start = min(taken * ranks, size)
        # What was padded was given out already when everything was.
        assert list(ours) == whole[taken:] or (taken == len(whole) and list(ours) == [])


@settings(deadline=None)
@_cases
def test_another_number_of_ranks_reads_exactly_what_was_left(
    size: int, ranks: int, epoch: int, shuffle: bool, drop_last: bool, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, size))
    order = seeded_order(size, 11, epoch, shuffle)
    given_out = []
    for rank in range(ranks):
        ours = sampler(size, ranks, rank, shuffle=shuffle, seed=11, drop_last=drop_last)
        ours.set_epoch(epoch)
        ours.start = start
        given_out.append(list(ours))
    assert len({len(indices) for indices in given_out}) == 1, "ranks with unequal shares would wait for ever"
    merged = [index for turn in zip(*given_out, strict=True) for index in turn]
    left = order[start:]
    if drop_last:
        assert merged == left[: len(left) - len(left) % ranks]
    else:
        assert merged[: len(left)] == left
        assert len(merged) - len(left) < ranks
