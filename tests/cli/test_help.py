"""Help, names and the version: what one sees before anything is done."""

from __future__ import annotations

import pytest
from command_line import Tamis

import tamis as package


@pytest.mark.parametrize("group", ["", "lab"])
def test_a_group_alone_prints_its_help_and_could_not_do_anything(tamis: Tamis, group: str) -> None:
    done = tamis(*group.split())
    assert (done.code, done.err) == (2, "")
    assert done.out == tamis(*group.split(), "--help").out


def test_what_stands_before_a_command_changes_nothing_and_a_wrong_name_is_compared_with_all(tamis: Tamis) -> None:
    """The command that is named is the only one that is made."""
    assert tamis("-v", "lab", "make-pool", "--help").out == tamis("lab", "make-pool", "--help").out != ""
    for wrong, meant in (("slect", "select"), ("lab make-tools", "make-pool")):
        done = tamis(*wrong.split())
        assert done.code == 2
        assert f"'{meant}'" in done.err


def test_the_version_goes_to_stdout(tamis: Tamis) -> None:
    done = tamis("--version")
    assert (done.code, done.out, done.err) == (0, f"{package.__version__}\n", "")
