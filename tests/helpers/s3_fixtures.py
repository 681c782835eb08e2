"""Fixtures: stores on this machine."""

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from faulty_server import S3_ENVIRONMENT, forget_clients, moto_server

#: The libraries of the server and of its client, not ours, warn.
LIBRARIES_WARN = [
    pytest.mark.filterwarnings(f"default::{kind}")
    for kind in ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
]


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """The URL of a server that speaks S3."""
    with moto_server() as url:
        yield url


@pytest.fixture(scope="module")
def read_models() -> Iterator[None]:
    """What botocore knows of S3 is read once, not for every new client: 2 MB of JSON."""
    from botocore.loaders import JSONFileLoader

    read, known = JSONFileLoader.load_file, dict[str, Any]()

    def load_file(loader: Any, path: str) -> Any:
        if path not in known:
            known[path] = read(loader, path)
        return known[path]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", load_file)
        yield


@pytest.fixture
def s3(s3_server: str, read_models: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket "pool" on a server that speaks S3, reached as a user's environment would have it."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
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
    """Short pauses between requests, and time-outs that a loaded machine keeps."""
    monkeypatch.setenv("TAMIS_REMOTE_WAIT", "0.01")
    monkeypatch.setenv("TAMIS_REMOTE_STALL", "20")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def parts_at_store(s3: Any, run: str = "pool/runs/mine") -> dict[str, bytes]:
    """Returns the parts of a run at the store, by their path in the run."""
    s3.invalidate_cache()
    names = {name.removeprefix(f"{run}/"): name for name in s3.find(run)}
    kinds = ("index/", "scores/", "embeddings/", "captions/", "texts/")
    return {
        name: s3.cat_file(path) for name, path in sorted(names.items()) if name.startswith(kinds) and "json" not in name
    }
