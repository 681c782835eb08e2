"""lab make-pool: a pool to score at once, in any mix."""

from __future__ import annotations

import pytest
from command_line import Tamis


def test_the_labs_pool_can_be_scored(tamis: Tamis) -> None:
    done = tamis("lab", "make-pool", "lab", "--pairs", "6", "--shard-size", "4", "--seed", "1")
    assert (done.code, done.out) == (0, "")
    assert "wrote 6 pairs to lab" in done.err
    assert tamis("score", "lab", "--run", "run", "--signals", "caption_length", "-q").code == 0


def test_a_pool_of_hard_pairs_and_one_of_own_shares(tamis: Tamis) -> None:
    done = tamis("lab", "make-pool", "hard", "--mix", "hard", "--pairs", "40")
    assert done.code == 0
    assert "wrong_count" in done.err
    done = tamis("lab", "make-pool", "own", "--pairs", "8", "--shares", "wrong_colour = 3, vague=0")
    assert done.err.strip().endswith("wrote 8 pairs to own: 8 wrong_colour")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mix", "hrad"), "'hrad'"),
        (("--shares", "visual"), "--shares"),
        (("--shares", "wrong_color=1"), "did you mean 'wrong_colour'?"),
        (("--shares", "visual=-1"), "visual"),
        (("--shares", ""), "shares"),
    ],
)
def test_a_mix_or_shares_that_are_none_are_refused(tamis: Tamis, options: tuple[str, str], message: str) -> None:
    done = tamis("lab", "make-pool", "pool", "--pairs", "4", *options)
    assert done.code != 0
    assert message in " ".join(done.err.split())
