"""A run whose columns stay in memory once they were read: the same recipe is then chosen many times a second."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tamis.arrays import U64
from tamis.store.run import Run
from tamis.store.table import Table

#: Bytes of columns that are held; what comes after is read from disk each time.
MOST = 1 << 30


class HeldRun(Run):
    """A run that remembers what it has read. Selectors see the table that they see on disk, only sooner.

    Embeddings are mapped from their files as ever, they are not held. One thread may read while another does: at
    worst both read the same column.
    """

    def __init__(self, path: str | os.PathLike[str], *, partial: bool = False, most: int = MOST) -> None:
        super().__init__(path, partial=partial)
        self._held: dict[tuple[int, str, str], Any] = {}
        self._held_uids: dict[int, tuple[U64, U64]] = {}
        self._room = most
        self._guard = threading.Lock()

    def table(self, aliases: Mapping[str, str] | None = None) -> Table:
        plain = super().table(aliases)
        names = dict(aliases or {})

        def read(block: int, wanted: Sequence[str]) -> dict[str, Any]:
            keys = {name: (block, *self._place(names.get(name, name))) for name in wanted}
            lacking = [name for name in wanted if keys[name] not in self._held]
            found = plain.read(block, lacking) if lacking else {}
            for name in lacking:
                if plain.kind(name) != "vector":
                    self._hold(keys[name], found[name])
            return {name: found[name] if name in found else self._held[keys[name]] for name in wanted}

        def read_uids(block: int) -> tuple[U64, U64]:
            if block not in self._held_uids:
                self._held_uids[block] = plain.read_uids(block)
            return self._held_uids[block]

        return Table(plain.sizes, read, read_uids, plain.kind, about=plain.about, side_file=plain.side_file)

    def _place(self, name: str) -> tuple[str, str]:
        inner, group, _ = self.locate(name)
        return (group.folder.name if group is not None else "", inner)

    def _hold(self, key: tuple[int, str, str], value: Any) -> None:
        with self._guard:
            if key not in self._held and value.nbytes <= self._room:
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False  # it will be handed out again
                self._held[key] = value
                self._room -= value.nbytes

    def forget(self, folder: str) -> None:
        """Reads the scores of one folder anew when they are next asked for: they were written since."""
        with self._guard:
            for key in [key for key in self._held if key[1] == folder]:
                self._room += self._held.pop(key).nbytes
            for name in ("scores", "columns"):
                self.__dict__.pop(name, None)
