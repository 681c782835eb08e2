"""Stores on this machine for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from faulty_server import forget_clients


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """The URL of a server that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket "pool" on a server that speaks S3, reached as a user's environment would have it."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    forget_clients()
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    fs.mkdir("pool")
    yield fs
    fs.invalidate_cache()
    fs.rm("pool", recursive=True)
    forget_clients()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries that follow each other soon, and time-outs that a loaded machine still keeps."""
    monkeypatch.setenv("TAMIS_REMOTE_WAIT", "0.01")
    monkeypatch.setenv("TAMIS_REMOTE_STALL", "20")
