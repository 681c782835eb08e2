"""Models behind a server: captions by the chat protocol, and what happens when the server misbehaves."""

import json
import os
import re
import signal
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import ChatServer, file_of, pixels_of, prompt_of
from factories import image_bytes, pair, parts_of, score, write_pool, write_tar
from faulty_server import Answer, Request
from processes import command, die_at_file

import tamis
from tamis.core.errors import ModelError, RecipeError
from tamis.core.types import Device
from tamis.models.chat_client import ChatClient, Question, Server, data_url
from tamis.pools.images import decode
from tamis.recipes.recipe import load
from tamis.runs import Run
from tamis.runs.parts import read_columns
from tamis.signals.graph import Identities

pytestmark = pytest.mark.usefixtures("quick")


def sent(file: bytes) -> bytes:
    """What is sent of an image's file."""
    url = data_url(decode(file, max_pixels=10**6), 1024)
    return file_of({"messages": [{"content": [{"image_url": {"url": url}}]}]})


def captions(run: Run) -> list[list[str] | None]:
    (name,) = run.texts
    return [texts for shard in run.shards for texts in run.texts_of(name, shard) or []]


def made(run: Path) -> dict[str, bytes]:
    """The parts but for the index, which says where the pool is."""
    return {name: data for name, data in parts_of(run).items() if not name.startswith("index/")}


def sieve(server: ChatServer, encoder: str, count: int = 2, **settings: Any) -> dict[str, Any]:
    captioner = {"url": server.url, "model": "tiny"} | settings
    return {"sieve": {"captioner": captioner, "encoder": encoder, "sampling": {"captions": count}}}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, clip_model: str) -> Run:
    """A run over what `pool` is, by a server that does what it should."""
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch, ChatServer() as server:
        patch.delenv("HTTP_PROXY", raising=False)
        return score(write_pool(folder / "pool"), folder / "run", sieve(server, clip_model), keep=["captions"])


def test_captions_are_the_servers_for_each_image_and_seed(
    good: Run, pool: Path, tmp_path: Path, clip_model: str
) -> None:
    found = captions(good)
    assert len(found) == 21
    assert all(texts is not None and len(texts) == 2 and texts[0] != texts[1] for texts in found)
    with ChatServer() as server:
        settings = sieve(server, clip_model, 3, requests=1, timeout=50)
        more = captions(score(pool, tmp_path / "run", settings, keep=["captions"], batch_size=4))
        asked = server.asked
    assert server.most == 1
    assert [texts[:2] for texts in more if texts] == found  # another number of requests, batch size and captions
    assert {(body["top_p"], body["temperature"], body["max_tokens"]) for body in asked} == {(0.9, 1.0, 20)}
    assert len({body["seed"] for body in asked}) == len(asked) == 63
    assert sorted({file_of(body) for body in asked}) == sorted(
        sent(pair(shard * 1000 + row)["jpg"]) for shard in range(3) for row in range(7)
    )


@pytest.mark.parametrize(
    "faults",
    [
        {"rate": 0.25, "faults": ("500", "503", "reset", "truncated", "lost")},
        {"rate": 0.2, "faults": ("trickle",)},
        {"first": ["", "", "stalled", "silent"]},
    ],
    ids=["cut", "slow", "hanging"],
)
def test_a_server_that_fails_now_and_then_changes_no_part(
    faults: dict[str, Any], good: Run, pool: Path, tmp_path: Path, clip_model: str
) -> None:
    timeout = 1.0 if "first" in faults else 30.0
    with ChatServer(**faults) as server:
        run = score(pool, tmp_path / "run", sieve(server, clip_model, timeout=timeout), keep=["captions"])
    assert sum(server.faults.values()) >= 2
    assert made(run.path) == made(good.path)


TOKEN = b'{"choices": [{"message": {"content": "7"}, "logprobs": {"content": [{"token": %s, "top_logprobs": [%s]}]}}]}'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(200, TOKEN % (b'"7"', b'{"token": "7", "logprob": NaN}')), "another form"),
        (Answer(200, TOKEN % (b'"7"', b'{"token": "7", "logprob": 1000}')), "another form"),
        (Answer(200, TOKEN % (b"7", b"")), "another form"),
        (Answer(200, b"[" * 200_000), "another form"),
        (Answer(200, b" " * (17 << 20)), "more than 16 MiB"),
        (Answer(400, b'{"error": {"message": "\\ud800 s3cret"}}'), r"HTTP 400: .*\*\*\*"),
    ],
    ids=["nan", "overflow", "number", "deep", "huge", "surrogate"],
)
def test_garbage_is_a_reason(answer: Answer, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "1")
    monkeypatch.setenv("SOME_API_KEY", "s3cret")
    with ChatServer() as server:
        own = server.answer
        server.answer = lambda request: own(request) if b"What is this?" in request.body else answer
        client = ChatClient(Server(url=server.url, model="tiny", key_from="SOME_API_KEY"))
        question = Question(np.zeros((8, 8, 3), np.uint8), "how many?", 9, probabilities=True)
        (found,) = client.ask([question])
    assert re.search(words, found.refused)
    found.refused.encode()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SOME_API_KEY", "s3cret\nX: y", "holds characters that no HTTP header can"),
        ("ALL_PROXY", "foo://u:s3cret@127.0.0.1:9", "cannot be asked .see also HTTP_PROXY"),
        ("SSL_CERT_FILE", "/missing.pem", "cannot be asked .see also HTTP_PROXY"),
    ],
)
def test_a_wrong_environment_is_one_sentence_without_secrets(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ModelError, match=words) as raised:
        ChatClient(Server(url="http://localhost:1", model="tiny", key_from="SOME_API_KEY"))
    assert "s3cret" not in str(raised.value)


def test_refusals_and_odd_answers_are_asked_for_again(good: Run, pool: Path, tmp_path: Path, clip_model: str) -> None:
    with ChatServer() as server:
        answer, odd = server.answer, [
            Answer(429, b'{"error": "slow down"}', {"Retry-After": "0"}),
            Answer(429, b"", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
            Answer(200, b"{"),
            Answer(200, b'{"choices": []}'),
            Answer(200, b'{"choices": [{"message": {"content": 3}}]}'),
            Answer(200, b"\xff"),
        ]  # fmt: skip

        def odd_first(request: Request) -> Answer:
            greeting = not request.body or b"What is this?" in request.body
            return odd.pop() if odd and not greeting else answer(request)

        server.answer = odd_first
        run = score(pool, tmp_path / "run", sieve(server, clip_model), keep=["captions"])
    assert odd == []
    assert len(server.asked) == 42 + 6
    assert made(run.path) == made(good.path)


def test_an_image_that_the_server_refuses_or_fails_at_is_null_with_a_reason(
    pool: Path, tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "2")
    write_tar(pool / "00003.tar", [("broken", pair(900) | {"jpg": b"no image"}), ("good", pair(901))])
    refused, failed = sent(pair(3)["jpg"]), sent(pair(1002)["jpg"])
    with ChatServer(refuses=lambda body: file_of(body) == refused) as server:
        answer = server.answer

        def fails(request: Request) -> Answer:
            if request.body and file_of(json.loads(request.body)) == failed:
                return Answer(500, b"the model fell over")
            return answer(request)

        server.answer = fails
        run = score(pool, tmp_path / "run", sieve(server, clip_model), keep=["captions"])
    found, scores = captions(run), run.to_numpy("sieve")
    assert [row for row, texts in enumerate(found) if not texts] == [3, 9, 21]
    assert (found[3], found[9], found[21]) == ([], [], None)
    assert np.flatnonzero(np.isnan(scores)).tolist() == [3, 9, 21]
    (group,) = run.scores.values()
    tables = [read_columns(group.folder / f"{shard}.parquet", ["reason"]) for shard in run.shards]
    reasons = [reason for table in tables for reason in table["reason"].to_pylist()]
    assert {row: reason for row, reason in enumerate(reasons[:21]) if reason} == dict.fromkeys(
        (3, 9), "the captioner's processor or server refuses the image"
    )


def test_a_killed_run_asks_for_its_missing_shards_only(good: Run, pool: Path, tmp_path: Path, clip_model: str) -> None:
    with ChatServer() as server:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(json.dumps({"signals": [sieve(server, clip_model)], "keep": ["captions"]}))
        arguments = ["score", str(pool), "--recipe", recipe, "--run", tmp_path / "run", "-q", "--workers", "1"]
        killed = command(*arguments, before=partial(die_at_file, 9))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        left = parts_of(tmp_path / "run")
        missing = [shard for shard in range(3) if not any("captions/" in one and f"{shard:05d}" in one for one in left)]
        assert 0 < len(missing) < 3
        server.requests.clear()
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
        assert len(server.asked) == 14 * len(missing)
    assert made(tmp_path / "run") == made(good.path)
    with ChatServer() as moved:  # finished: under another URL, nothing is asked
        settings = sieve(moved, clip_model, requests=3, key_from="NOT_SET_API_KEY")
        again = score(pool, tmp_path / "run", settings, keep=["captions"])
        assert moved.requests == []
    assert len(again.scores) == 1


def test_a_server_that_is_gone_ends_the_run_and_what_is_done_stays(
    pool: Path, tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "2")
    with ChatServer() as server:
        answer = server.answer
        server.answer = lambda request: answer(request) if len(server.requests) < 20 else Answer(502, b"bad gateway")
        settings = sieve(server, clip_model, requests=2)
        with pytest.raises(ModelError, match=r"does not answer for the model 'tiny' \(2 tries failed, .*bad gateway"):
            score(pool, tmp_path / "run", settings, keep=["captions"])
        assert len(server.requests) < 40
    with pytest.raises(ModelError, match="is it running, and is the URL right"):
        score(pool, tmp_path / "other", settings, keep=["captions"])
    assert len(parts_of(tmp_path / "run")) == 3
    assert parts_of(tmp_path / "other") == {}


@pytest.mark.parametrize(
    ("settings", "server", "message"),
    [
        ({"model": "tinny"}, {}, "has unknown model 'tinny' .did you mean 'tiny'..; known: tiny"),
        ({}, {"refuses": lambda body: True}, "this image cannot be processed.*does the model take images"),
        ({"key_from": "SOME_API_KEY"}, {"key": "other"}, "HTTP 401: .*wrong key: Bearer \\*\\*\\*"),
        ({"key_from": "NO_API_KEY"}, {}, "the variable NO_API_KEY is not set"),
    ],
)
def test_a_server_that_cannot_do_it_is_said_so_before_work(
    settings: dict[str, Any],
    server: dict[str, Any],
    message: str,
    pool: Path,
    tmp_path: Path,
    clip_model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret")
    with ChatServer(**server) as one:
        with pytest.raises(ModelError, match=message) as raised:
            score(pool, tmp_path / "run", sieve(one, clip_model, **settings))
        assert one.asked == []
    assert "s3cret" not in str(raised.value)
    assert parts_of(tmp_path / "run") == {}


def test_neither_key_nor_password_is_written_anywhere(
    good: Run, pool: Path, tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret-key")
    with ChatServer(key="s3cret-key") as server:
        settings = sieve(server, clip_model, key_from="SOME_API_KEY")
        run = score(pool, tmp_path / "run", settings, keep=["captions"], workers=2)
        assert made(run.path) == made(good.path)
    with ChatServer() as server:
        settings = sieve(server, clip_model)
        settings["sieve"]["captioner"]["url"] = server.url.replace("://", "://me:p4ssword@") + "/v1?token=t0ken"
        recipe = load({"signals": [settings], "select": []})
        tamis.score(write_pool(tmp_path / "few", shards=1, rows=2), run=tmp_path / "two", recipe=recipe, quiet=True)
        headers = server.requests[-1].headers
        assert (headers["Authorization"][:6], server.requests[-1].path[-12:]) == ("Basic ", "?token=t0ken")
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"http://127.0.0.1" in written
    for secret in (b"s3cret-key", b"p4ssword", b"t0ken"):
        assert secret not in written
    assert "p4ssword" not in str(recipe)


def test_the_fingerprint_holds_model_prompt_and_sampling_but_not_where_the_server_is(clip_model: str) -> None:
    def fingerprint(sampling: dict[str, Any] | None = None, **captioner: Any) -> str:
        settings = {"url": "http://one:8000", "model": "m"} | captioner
        recipe = load(
            {"signals": [{"sieve": {"captioner": settings, "encoder": clip_model, "sampling": sampling or {}}}]}
        )
        return Identities(Device()).fingerprint(recipe.signals[0][1])

    first = fingerprint()
    assert fingerprint(url="https://two/v1", requests=2, timeout=5, key_from="AN_API_KEY") == first
    others = [fingerprint(**{name: value}) for name, value in {
        "model": "n", "prompt": "What?", "temperature": 0.5, "side": 512, "sampling": {"top_p": 0.5}
    }.items()]  # fmt: skip
    assert len({first, *others}) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"captioner": {"url": "http://one"}}, "sieve, captioner: the setting 'model' is missing"),
        ({"captioner": {"url": "one:80", "model": "m"}}, "url must begin with http:// or https://, got 'one:80'"),
        ({"captioner": {"ulr": "http://one", "model": "m"}}, "unknown setting 'ulr' .did you mean 'url'"),
        ({"captioner": {"url": "http://one", "model": "m", "key_from": "HOME"}}, "key_from must end with _API_KEY"),
        ({"captioner": {"url": "http://one", "model": "m", "requests": 0}}, "requests must be at least 1"),
        ({"sampling": {"top_k": 3}}, "no such setting .*leave out top_k=3"),
        ({"sampling": {"prompt": "a photo of"}}, "the prompt belongs in captioner.*leave out prompt"),
        ({"fit": "crop"}, "leave out fit='crop'"),
    ],
)
def test_a_wrong_setting_is_said_before_work(settings: dict[str, Any], message: str) -> None:
    given = {"captioner": {"url": "http://one", "model": "m"}} | settings
    with pytest.raises(RecipeError, match=message):
        load({"signals": [{"sieve": given}]})


def test_a_servers_image_is_a_jpeg_of_its_pixels() -> None:
    for file in (image_bytes(1, format="PNG", mode="RGBA"), image_bytes(1, size=(90, 60))):
        pixels = decode(file, max_pixels=10**6)
        found = pixels_of({"messages": [{"content": [{"image_url": {"url": data_url(pixels, 64)}}]}]})
        if max(pixels.shape) <= 64:
            assert found.shape == pixels.shape
            assert np.abs(found.astype(int) - pixels).mean() < 9
        else:
            assert found.shape[:2] == (43, 64)


def says_its_number(file: Path) -> None:
    """Has this process write its number to a file and take interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file.write_text(str(os.getpid()))


def test_an_interrupt_waits_for_no_answer(tmp_path: Path) -> None:
    pool, number, over = write_pool(tmp_path / "pool", shards=1, rows=9), tmp_path / "number", threading.Event()

    def hangs(body: Mapping[str, Any]) -> str:
        if prompt_of(body) != "What is this?":
            os.kill(int(number.read_text()), signal.SIGINT)
            over.wait()
        return "7"

    with ChatServer(hangs) as server:
        judge = {"judge": {"model": {"url": server.url, "model": "tiny", "requests": 1}, "number": "written"}}
        (tmp_path / "recipe.yaml").write_text(json.dumps({"signals": [judge]}))
        arguments = ["score", pool, "--recipe", tmp_path / "recipe.yaml", "--run", tmp_path / "run", "-q"]
        done = command(*arguments, before=partial(says_its_number, number))
        asked = len(server.asked)
        over.set()
    assert (done.returncode, asked) == (130, 1), done.stderr
    assert parts_of(tmp_path / "run") == {}


def test_many_are_asked_at_once_and_answers_keep_their_order() -> None:
    grey = np.full((8, 8, 3), 9, np.uint8)
    with ChatServer(lambda body: body["messages"][0]["content"][1]["text"]) as server:
        client = ChatClient(Server(url=server.url + "/v1/", model="tiny", requests=5))
        prompts = [f"number {n}" for n in range(40)]
        answers = client.ask([Question(grey, prompt, 9) for prompt in prompts])
        assert [answer.text for answer in answers] == prompts
        assert client.ask([]) == []
    assert server.most <= 5
