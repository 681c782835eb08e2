"""Packages as pip installs them, and as if they were not installed."""

from collections.abc import Mapping
from pathlib import Path

#: Code after which no package can be imported whose name is `hidden(name)`, as if it were not installed.
HIDING = """
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if hidden(name.partition(".")[0]) else self.finder.find_spec(name, path, target)
import sys
sys.meta_path[:] = [Hiding(finder) if hasattr(finder, "find_spec") else finder for finder in sys.meta_path]
"""


def install_package(
    site: Path, distribution: str, entries: Mapping[str, Mapping[str, str]], modules: Mapping[str, str] | None = None
) -> None:
    """Installs a package as pip leaves it: its entry points by group and name, and modules by dotted name."""
    facts = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in some.items())
        for group, some in entries.items()
    ]
    (facts / "entry_points.txt").write_text("\n".join(groups))
    for name, code in (modules or {}).items():
        path = site.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
