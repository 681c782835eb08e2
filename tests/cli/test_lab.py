"""lab make-pool: a pool to score at once."""

from __future__ import annotations

from command_line import Tamis


def test_the_labs_pool_can_be_scored(tamis: Tamis) -> None:
    done = tamis("lab", "make-pool", "lab", "--pairs", "6", "--shard-size", "4", "--seed", "1")
    assert (done.code, done.out) == (0, "")
    assert "wrote 6 pairs to lab" in done.err
    assert tamis("score", "lab", "--run", "run", "--signals", "caption_length", "-q").code == 0
