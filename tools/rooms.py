"""Draws which room imports which: `python -m tools.rooms [--arrows]`.

A room is a package directly under `tamis`, or `tamis_lab`; the module `tamis` itself only names their functions. An
arrow is an import from one room to another, also inside functions, but not for type checking only. A room's floor is
the longest way down from it; rooms that import each other in a circle share one. Exits with 1 if there is a circle.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
from collections import defaultdict

import grimp

PACKAGES = [name for name in ("tamis", "tamis_lab") if importlib.util.find_spec(name)]


def room_of(module: str) -> str:
    """Returns the room of a module: `tamis.pools.tar` is in `pool`, `tamis_lab.world` in `tamis_lab`."""
    package, *rest = module.removesuffix(".__main__").split(".")
    return rest[0] if package == "tamis" and rest else package


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Returns groups of two or more names that reach each other."""

    @functools.cache
    def reach(start: str) -> frozenset[str]:
        seen, todo = set[str](), [start]
        while todo:
            new = arrows.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return frozenset(seen)

    groups = {frozenset(b for b in reach(a) if a in reach(b)) for a in arrows if a in reach(a)}
    return sorted(sorted(group) for group in groups)


def floors(arrows: dict[str, set[str]], rooms: set[str]) -> dict[str, int]:
    """Returns the length of the longest way down from each room; a circle counts as one room."""
    group = {name: frozenset(circle) for circle in circles(arrows) for name in circle}

    @functools.cache
    def floor(names: frozenset[str]) -> int:
        below = {b for name in names for b in arrows.get(name, ())} - names
        return 1 + max((floor(group.get(b, frozenset({b}))) for b in below), default=0)

    return {room: floor(group.get(room, frozenset({room}))) for room in rooms}


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws which room imports which.")
    parser.add_argument("--arrows", action="store_true", help="list each import behind an arrow")
    options = parser.parse_args()
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    files, arrows = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    imports = defaultdict[tuple[str, str], list[str]](list)
    for module in sorted(graph.modules):
        for target in sorted(graph.find_modules_directly_imported_by(module)):
            files[module].add(target)
            a, b = room_of(module), room_of(target)
            if a != b and "tamis" not in (a, b):
                arrows[a].add(b)
                imports[a, b].append(f"{module} -> {target}")
    rooms = {room_of(module) for module in graph.modules} - {"tamis"}
    heights = floors(arrows, rooms)
    order = sorted(rooms, key=lambda name: (-heights[name], name))
    for room in order:
        print(f"{heights[room]:3}  {room:12} -> {', '.join(name for name in order if name in arrows[room])}")
    if options.arrows:
        for (a, b), lines in sorted(imports.items()):
            print(f"\n{a} -> {b}", *lines, sep="\n  ")
    found = [("files", circle) for circle in circles(files)] + [("rooms", circle) for circle in circles(arrows)]
    count = sum(map(len, arrows.values()))
    print(f"{len(rooms)} rooms, {max(heights.values())} floors, {count} arrows, {len(found)} circles")
    for kind, circle in found:
        print(f"circle of {len(circle)} {kind}: {', '.join(circle)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
