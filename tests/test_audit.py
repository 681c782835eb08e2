"""`make audit`: which licences are refused, and that a missing network is said at once."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from audit import EXCEPTIONS, Package, installed, problem, told
from faulty_server import FaultyServer, files

AUDIT = Path(__file__).parent / "audit.py"


@pytest.mark.parametrize(
    ("package", "says"),
    [
        (Package("a", "MIT"), None),
        (Package("a", "Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSL-1.0"), None),
        (Package("a", "GPL-3.0-only OR MIT"), None),
        (Package("a", "(GPL-3.0-only OR MIT) AND BSD-3-Clause"), None),
        (Package("a", "(MIT AND GPL-3.0-only) OR Zlib"), None),
        (Package("a", "MIT AND GPL-3.0-only"), "its licence is MIT AND GPL-3.0-only"),
        (Package("a", "AGPL-3.0-or-later"), "its licence is AGPL-3.0-or-later"),
        (Package("a", "LicenseRef-Proprietary"), "its licence is LicenseRef-Proprietary"),
        (Package("a", "", ("License :: OSI Approved :: BSD License",)), None),
        (Package("a", "", ("License :: OSI Approved",), "MIT License\n\nCopyright (c) somebody"), None),
        (Package("a", "", ("License :: OSI Approved :: GNU General Public License v3 (GPLv3)",)), "its licence is GPL"),
        (
            Package("a", "", ("License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)",)),
            "its licence is LGPL",
        ),
        (Package("a", "", (), "GNU AFFERO GENERAL PUBLIC LICENSE"), "its licence is AGPL"),
        (Package("a", "", (), "as we like"), "its metadata names no licence that is known here"),
        (Package("a"), "its metadata names no licence that is known here"),
    ],
)
def test_a_licence_is_allowed_or_named(package: Package, says: str | None) -> None:
    assert problem(package) == says


def test_everything_that_is_installed_here_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray, once imported, looks first among copies of its own.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "thirdparty_files" not in path])
    packages = installed()
    assert len(packages) > 20
    wrong = {package.name: why for package in packages if (why := problem(package))}
    assert set(wrong) <= set(EXCEPTIONS)
    done = subprocess.run([sys.executable, str(AUDIT), "licences"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.endswith(f"{len(packages)} packages: all licences are allowed\n")


def test_a_network_that_is_silent_is_said_within_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import audit

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        start = time.monotonic()
        assert audit.unreachable(url, 0.3) in ("does not answer within 0.3 s", "cannot be reached (timed out)")
        assert time.monotonic() - start < 5
    assert audit.unreachable(url, 5).startswith("cannot be reached (")
    monkeypatch.setattr(audit, "SERVICE", url)
    assert audit.vulnerabilities() == 2
    assert f"known vulnerabilities were not looked up: {url} cannot be reached (" in capsys.readouterr().err


def test_a_mirror_of_some_packages_is_told_from_pypi() -> None:
    import audit

    known = files({"/pypi/numpy/json": b'{"vulnerabilities": []}', "/simple/numpy": b"{}"})
    with FaultyServer(known) as server:
        assert audit.unreachable(f"{server.url}/pypi/numpy/json", 5) == ""
        assert audit.unreachable(f"{server.url}/pypi/pip/json", 5) == (
            "does not know what many use, as a mirror of a few packages (HTTP 404)"
        )
        assert "tells of no vulnerabilities" in audit.unreachable(f"{server.url}/simple/numpy", 5)
        server.first = ["500"]
        assert audit.unreachable(f"{server.url}/pypi/numpy/json", 5) == "answers with an error (HTTP 500)"


def test_an_index_that_knows_little_is_no_clean_bill() -> None:
    """A mirror of some packages answers for those alone, and pip-audit then ends as if nothing were wrong."""
    known = {"name": "a", "version": "1", "vulns": []}
    hidden = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    flaw = {"id": "PYSEC-1", "fix_versions": ["2", "3"]}
    assert told([known, known]) == (["2 packages looked up: no known vulnerabilities"], 0)
    lines, code = told([known, known, hidden])
    assert (lines[0], code) == ("not looked up, since PyPI does not have their version: b", 0)
    lines, code = told([known, hidden, hidden])
    assert "this tells nothing" in lines[-1]
    assert code == 2
    assert told([known | {"vulns": [flaw]}]) == (
        ["a 1: PYSEC-1, repaired in 2, 3", "1 packages looked up: 1 known vulnerabilities"],
        1,
    )
