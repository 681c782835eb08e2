"""What lies in a run beside its parts: subsets, the log, the recipe, what is kept of unfinished shards, strange files.

`tamis doctor` looks at it with the readers that read it otherwise. What is a user's own is told of, and never deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import yaml

from tamis.data import KEEPS
from tamis.errors import DamageError, RunError
from tamis.store.atomic import TEMPORARY, remove_file
from tamis.store.formats import EventFacts, read_lines
from tamis.store.run import Run
from tamis.store.seals import SealedParquet
from tamis.store.subset_file import read_subset, rows_of
from tamis.store.unfinished import UNFINISHED, drop_unfinished


@dataclass(frozen=True)
class Oddity:
    """Something that is not as it should be.

    Attributes:
        kind: of `tamis.store.doctor.MEANING`.
        path: of the file or folder.
        what: a sentence.
        mend: what puts it right; None: it is not ours to do.
        shard: whose claim is needed for that; "" for none.
        still: tells, while that is held, whether it is as it was found; None: whether the run does not list the shard.
    """

    kind: Literal["leftover", "missing", "yours"]
    path: Path
    what: str
    mend: Callable[[], object] | None = None
    shard: str = ""
    still: Callable[[], bool] | None = None


def oddities(run: Run) -> Iterator[Oddity]:
    """Yields what is not as it should be of all that lies beside a run's parts.

    Raises:
        OSError: a folder cannot be listed.
    """
    yield from _recipe(run.path / "recipe.yaml")
    for path in sorted(run.path.glob("events*.jsonl")):
        try:
            for _ in read_lines(path, EventFacts):
                pass
        except (RunError, OSError) as error:
            yield Oddity("yours", path, str(error))
    yield from _subsets(run.path)
    yield from _unfinished(run)
    yield from _strays(run.path)


def _recipe(path: Path) -> Iterator[Oddity]:
    again = "repeat `tamis score` with the recipe's own file, or the same --scores: it is written again"
    try:
        if not isinstance(found := yaml.safe_load(path.read_text(encoding="utf-8")), dict):
            yield Oddity("yours", path, f"it holds no recipe but {type(found).__name__}; {again}")
    except FileNotFoundError:
        yield Oddity("missing", path, again)
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        yield Oddity("yours", path, f"it cannot be read ({str(error).partition(chr(10))[0][:200]}); {again}")


def _subsets(run: Path) -> Iterator[Oddity]:
    for path in sorted((run / "subsets").glob("*.parquet")):
        if path.name.startswith("."):
            continue
        try:
            table, facts, _ = read_subset(path)
            for _ in rows_of(path, table, facts):
                pass
        except RunError as error:
            command = shlex.join(["tamis", "select", str(run), "--recipe", path.stem, "--out", str(path)])
            yield Oddity("yours", path, f"{error}: {command} (with the recipe's file, where it is one of your own)")


def _unfinished(run: Run) -> Iterator[Oddity]:
    folder = run.path / UNFINISHED
    for kept in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not kept.is_dir():
            yield _stray(kept)
        elif kept.name not in run.urls:
            what = "kept of a shard that the run does not list"
            yield Oddity("leftover", kept, what, lambda name=kept.name: drop_unfinished(run.path, name), kept.name)  # type: ignore[misc]
        else:
            yield from _kept(kept)


def _kept(folder: Path) -> Iterator[Oddity]:
    """Looks at what is kept of one shard; whoever is at the shard may delete it meanwhile."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix == ".json":  # a damaged note is as good as none
            continue
        try:
            _read_kept(path)
        except DamageError as error:
            if path.exists():
                what = f"{error.what}; nobody would take these rows up"
                yield Oddity(
                    "leftover", path, what, partial(remove_file, path), folder.name, partial(_is_damaged, path)
                )
        except RunError as error:
            yield Oddity("yours", path, str(error))


def _read_kept(path: Path) -> None:
    part = SealedParquet(path)
    if not part.sealed:
        raise DamageError("", "it has no seal")
    part.read(None)


def _is_damaged(path: Path) -> bool:
    try:
        _read_kept(path)
    except DamageError:
        return path.exists()
    except RunError:
        return False
    return False


def _strays(run: Path) -> Iterator[Oddity]:
    """Looks for what is no file of ours where only files of ours should lie. Hidden files are the system's."""
    for kind in ("scores", *KEEPS):
        for path in sorted((run / kind).glob("*")):
            if path.is_dir():
                arrays = {".npy"} if kind in ("embeddings", "scores") else set()
                yield from _strays_in(path, {".json", *arrays, *({".parquet"} if kind != "embeddings" else ())})
            elif not path.name.startswith("."):
                yield _stray(path)
    yield from _strays_in(run / "index", {".parquet"})
    yield from _strays_in(run / "failures", {".json"})


def _strays_in(folder: Path, right: set[str]) -> Iterator[Oddity]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        fits = path.suffix in right and not path.is_dir()
        if not fits and not path.name.startswith(".") and path.suffix != TEMPORARY:
            yield _stray(path)


def _stray(path: Path) -> Oddity:
    return Oddity("yours", path, "tamis wrote no such file and reads none: move it elsewhere, or delete it")
