"""`tamis list models`: what is built in, what is on this machine, and what the hub has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factories import safetensors_bytes
from huggingface_hub import constants

from tamis.catalogue import CATALOGUES
from tamis.errors import install
from tamis.models.reference import BUILT_IN, HUB, BuiltIn

KEYS = ["model", "kind", "job", "size_mb", "licence", "download", "command", "about"]
B32 = "openai/clip-vit-base-patch32"


def rows() -> dict[str, dict[str, Any]]:
    listed = CATALOGUES["models"]()
    found = {row["model"]: row for row in listed}
    assert len(found) == len(listed)  # nothing twice
    return found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def in_cache(cache: Path, name: str, card: str | None = None, *, kind: str = "models", whole: bool = True) -> None:
    repository = cache / f"{kind}--{name.replace('/', '--')}"
    folder = repository / "snapshots" / ("a" * 40)
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if whole:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(b"w" * 1_234_000))
    if card is not None:
        (folder / "README.md").write_text(card)


def test_built_ins_come_first_then_the_hub_and_any_folder_last() -> None:
    listed = rows()
    assert list(listed) == [*BUILT_IN, *HUB, "path/to/folder"]
    assert [name for name, row in listed.items() if row["kind"] == "hub, pickled"] == ["openai/clip-vit-base-patch16"]
    row = listed["minilm"]
    assert (row["kind"], row["job"], row["licence"]) == ("built-in", "sentence encoder", "Apache-2.0")
    assert (row["download"], row["command"]) == (False, None)
    assert 90 < row["size_mb"] < 95


def test_a_built_in_that_is_not_here_tells_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, extra in (("minilm", "sentence"), ("lab/clip", None)):
        lost = BuiltIn(job="image-text", package="not_there", file="x", extra=extra, about="lost", licence="MIT")
        monkeypatch.setitem(BUILT_IN, name, lost)  # type: ignore[arg-type]  # a dict, though said to be read-only
    row = rows()["minilm"]
    assert (row["size_mb"], row["download"], row["command"]) == (None, True, install("sentence"))
    row = rows()["lab/clip"]
    assert (row["size_mb"], row["download"], row["command"]) == (None, False, "pip install --force-reinstall tamis")


def test_what_lies_complete_in_the_cache_is_local_and_shown_once(cache: Path) -> None:
    in_cache(cache, B32)
    in_cache(cache, "google/siglip-base-patch16-224", whole=False)
    in_cache(cache, "someone/blip-mine", "---\nlicense: cc-by-4.0\n---\n# A card")
    in_cache(cache, "someone/pictures", kind="datasets")
    row = rows()[B32]
    assert (row["kind"], row["size_mb"], row["licence"], row["download"]) == ("local", 1.2, "MIT", False)
    row = rows()["someone/blip-mine"]
    assert (row["kind"], row["job"], row["licence"]) == ("local", "captioner", "cc-by-4.0")
    assert rows()["google/siglip-base-patch16-224"]["kind"] == "hub"
    assert "someone/pictures" not in rows()
