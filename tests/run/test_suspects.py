"""An actor that was at many shards has died: the guilty ones are found by halving, and nobody else is blamed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.pool import PoolSpec
from tamis.pool.tar import TarShard
from tamis.run.engines.suspects import Suspects
from tamis.run.plan import Task


def tasks(count: int) -> list[Task]:
    return [Task(TarShard(name=f"{number:05}", url="", spec=PoolSpec(path="")), ()) for number in range(count)]


def tried(suspects: Suspects, guilty: set[str]) -> tuple[list[str], set[str], int, int]:
    """Does what is suspected, with actors that die of the guilty shards before they have done any other.

    Returns the shards that were set aside, those that were done, how often an actor died, and how many groups were
    done.
    """
    aside, done, deaths, groups = list[str](), set[str](), 0, 0
    while suspects:
        group = suspects.take()
        if guilty.isdisjoint(task.shard.name for task in group):
            done |= {task.shard.name for task in group}
            groups += 1
        else:
            deaths += 1
            found = suspects.died(group)
            aside += [] if found is None else [found.shard.name]
    return aside, done, deaths, groups


def test_a_death_that_no_shard_is_to_blame_for_costs_two_groups() -> None:
    suspects = Suspects(2)
    assert suspects.died(tasks(33)) is None
    assert [len(group) for group in suspects.groups] == [17, 16]
    aside, done, deaths, groups = tried(suspects, set())
    assert (aside, len(done), deaths, groups) == ([], 33, 0, 2)


@pytest.mark.parametrize("number", [0, 16, 17, 32])
def test_one_guilty_shard_of_33_costs_a_death_for_each_halving(number: int) -> None:
    suspects = Suspects(2)
    suspects.died(tasks(33))
    aside, done, deaths, groups = tried(suspects, {f"{number:05}"})
    assert (aside, len(done)) == ([f"{number:05}"], 32)
    assert deaths <= math.ceil(math.log2(33)) - 1 + 2  # the first halving is the death before; two prove it alone
    assert groups <= math.ceil(math.log2(33))


@given(count=st.integers(1, 40), most=st.integers(1, 3), data=st.data())
def test_whatever_shards_kill_they_are_set_aside_and_no_others(count: int, most: int, data: st.DataObject) -> None:
    names = [task.shard.name for task in tasks(count)]
    guilty = data.draw(st.sets(st.sampled_from(names)))
    suspects = Suspects(most)
    first = suspects.died(tasks(count))
    aside, done, deaths, _ = tried(suspects, guilty)
    if first is not None:
        assert (count, most) == (1, 1)  # one death is enough, and nothing else was there
    else:
        assert (sorted(aside), done) == (sorted(guilty), set(names) - guilty)
    assert deaths <= len(guilty) * (math.ceil(math.log2(count)) + most)


def test_shards_that_another_process_is_at_come_last_and_together() -> None:
    suspects, (first, second, *rest) = Suspects(2), tasks(6)
    suspects.died(rest)
    suspects.postponed += [first, second]
    assert len(suspects) == 6
    groups: list[Sequence[Task]] = []
    while suspects:
        groups.append(suspects.take())
    assert groups == [tuple(rest[:2]), tuple(rest[2:]), (first, second)]
    assert suspects.take() == ()


def test_a_shard_that_killed_alone_is_tried_again_before_the_others() -> None:
    suspects, (first, *rest) = Suspects(2), tasks(5)
    suspects.died(rest)
    assert suspects.died([first]) is None
    assert suspects.take() == (first,)
    assert suspects.died([first]) == first
