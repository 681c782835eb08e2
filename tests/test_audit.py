"""`make audit`: which licences are refused, and when a report of vulnerabilities means nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from audit import problem, summary


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        (["MIT"], None),
        (["(GPL-3.0-only OR MIT) AND BSD-3-Clause"], None),
        (["(MIT AND GPL-3.0-only) OR Zlib"], None),
        (["MIT AND GPL-3.0-only"], "its licence is MIT AND GPL-3.0-only"),
        (["", ("License :: OSI Approved :: BSD License",)], None),
        (["", ("License :: OSI Approved",), "MIT License\n\nCopyright (c) somebody"], None),
        (["", ("License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)",)], "its licence is LGPL"),
        (["", (), "GNU AFFERO GENERAL PUBLIC LICENSE"], "its licence is AGPL"),
        (["", (), "as we like"], "its metadata names no known licence"),
    ],
)
def test_a_licence_is_allowed_or_named(package: list[str], reason: str | None) -> None:
    assert problem(*package) == reason


def test_everything_that_is_installed_here_may_be_used() -> None:
    command = [sys.executable, str(Path(__file__).parent / "audit.py"), "licences"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "packages: all licences are allowed" in done.stdout) == (0, True), done.stdout


def test_an_index_that_knows_little_is_no_clean_bill() -> None:
    known = {"name": "a", "version": "1", "vulns": []}
    hidden = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    flaw = {"id": "PYSEC-1", "fix_versions": ["2", "3"]}
    assert summary([known, known]) == (["2 packages looked up"], 0)
    assert summary([known, known, hidden])[1] == 0
    assert summary([known, hidden, hidden])[1] == 2
    assert summary([known | {"vulns": [flaw]}]) == (["a 1: PYSEC-1, repaired in 2, 3", "1 packages looked up"], 1)
