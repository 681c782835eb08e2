"""Models behind a server: captions by the chat protocol, and what happens when the server misbehaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from factories import parts_of, score

from tamis.store import Run

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("quick")


def captions(run: Run) -> list[list[str] | None]:
    (name,) = run.texts
    return [texts for shard in run.shards for texts in run.texts_of(name, shard) or []]


def sieve(server: ChatServer, encoder: str, **settings: Any) -> dict[str, Any]:
    captioner = {"url": server.url, "model": "tiny"} | settings
    return {"sieve": {"captioner": captioner, "encoder": encoder, "sampling": {"captions": 2}}}


def test_a_server_captions_a_pool(pool: Path, tmp_path: Path, clip_model: str) -> None:
    with ChatServer() as server:
        run = score(pool, tmp_path / "run", sieve(server, clip_model), keep=["captions"])
    found = captions(run)
    assert len(found) == 21
    assert all(texts is not None and len(texts) == 2 for texts in found)
    assert len(server.asked) == 42
    assert parts_of(run.path)
