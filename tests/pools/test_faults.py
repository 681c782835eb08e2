"""Stores that fail now and then: what may pass is retried, other errors are reported at once, nothing is lost."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import pair, score, write_pool, write_tar
from faulty_server import FAULTS, Answer, FaultyServer, Request, files, forget_clients, passed_on
from processes import command
from s3_fixtures import LIBRARIES_WARN

import tamis
from tamis.core.errors import PoolError
from tamis.core.files.find import open_file, read_head, read_ranges
from tamis.core.files.remote import RemoteError, public_url, redact, setting
from tamis.pools import PoolSpec, open_pool
from tamis.runs import Run

pytestmark = [*LIBRARIES_WARN, pytest.mark.usefixtures("quick")]

#: Answers that do not end by themselves.
ENDLESS = ("stalled", "silent", "trickle")

DATA = bytes(np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8))


def served(folder: Path, at: str = "/pool") -> dict[str, bytes]:
    return {f"{at}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in ENDLESS])
def test_a_request_that_fails_is_made_again(kind: str) -> None:
    with FaultyServer(files({"/a.bin": DATA}), first=["", kind, kind, ""]) as server:
        assert read_ranges(f"{server.url}/a.bin", [(10, 5), (39_990, 10)]) == [DATA[10:15], DATA[-10:]]
        assert read_head(f"{server.url}/a.bin", 100) == DATA[:100]
        assert server.faults[kind]
    with (
        FaultyServer(files({"/a.bin": DATA}), first=[kind, "", kind]) as server,
        open_file(f"{server.url}/a.bin") as file,
    ):
        assert file.read() == DATA


def test_a_range_that_comes_short_is_asked_for_again() -> None:
    content, spoiled = files({"/a.bin": DATA}), list[int]()

    def answer(request: Request) -> Answer:
        whole = content(request)
        if spoiled or len(whole.body) < 2:
            return whole
        spoiled.append(len(whole.body))
        return Answer(whole.status, whole.body[:-1], whole.headers)

    with FaultyServer(answer) as server, open_file(f"{server.url}/a.bin") as file:
        assert (file.read(), len(spoiled)) == (DATA, 1)


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("store", ["http", "s3"])
def test_an_answer_that_does_not_come_is_given_up_and_asked_for_again(
    store: str, kind: str, s3: Any, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_STALL", "0.5")
    s3.pipe_file("pool/a.bin", DATA)
    with FaultyServer(passed_on(s3_server) if store == "s3" else files({"/a.bin": DATA})) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        forget_clients()
        url = "s3://pool/a.bin" if store == "s3" else f"{server.url}/a.bin"
        with open_file(url) as file:
            server.first = [kind]
            assert file.read() == DATA
        server.first = [kind]
        assert read_ranges(url, [(10, 5_000)]) == [DATA[10:5_010]]
        server.first = [kind]
        assert read_head(url, 5_000) == DATA[:5_000]
        assert server.faults == {kind: 3}


@pytest.mark.parametrize(
    ("store", "status", "page", "words"),
    [
        ("http", 404, "", "it is not there"),
        ("http", 403, "<Code>AccessDenied</Code>", r"access was denied \(HTTP 403\): check that the credentials"),
        ("http", 401, "", r"access was denied \(HTTP 401\)"),
        ("http", 403, "<Message>Request has expired</Message>", r"token has expired \(HTTP 403\): renew"),
        ("http", 403, "Signature not valid in the specified time frame", "the signature or token has expired"),
        ("http", 501, "", "HTTP 501"),
        ("s3", 400, "<Code>ExpiredToken</Code>", r"has expired \(HTTP 400 ExpiredToken\): renew"),
        ("s3", 403, "<Code>RequestTimeTooSkewed</Code>", "set the clock"),
        ("s3", 403, "<Code>InvalidAccessKeyId</Code>", r"access was denied \(HTTP 403 InvalidAccessKeyId\): check"),
        ("s3", 404, "<Code>NoSuchBucket</Code>", "it is not there"),
    ],
)
def test_what_will_not_go_better_is_reported_at_once(
    store: str, status: int, page: str, words: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"<Error>{page}<Message>AKIA-c0ffee</Message></Error>" if store == "s3" else page
    answer = Answer(status, body.encode(), {"Content-Type": "application/xml"} if store == "s3" else {})
    with FaultyServer(lambda request: answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        forget_clients()
        url = "s3://pool/0.tar" if store == "s3" else f"{server.url}/pool/0.tar?X-Amz-Signature=c0ffee"
        with pytest.raises(RemoteError, match=words) as caught:
            read_head(url, 10)
        assert (caught.value.transient, len(server.requests)) == (False, 1)
        assert "c0ffee" not in str(caught.value)
        with pytest.raises(PoolError, match=r"(cannot list|no pool at) '.*/0.tar'") as stopped:
            open_pool(url)
        assert "c0ffee" not in str(stopped.value)


def test_tries_end_and_the_error_says_how_many_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "3")
    with FaultyServer(files({"/a.bin": DATA}), rate=1, faults=("500",)) as server:
        with pytest.raises(RemoteError, match="3 tries failed, the last with HTTP 500") as caught:
            read_head(f"{server.url}/a.bin", 10)
        assert (caught.value.transient, len(server.requests)) == (True, 3)
    for text, reason in (("many", "TAMIS_REMOTE_TRIES is 'many'"), ("0", "1 or more")):
        monkeypatch.setenv("TAMIS_REMOTE_TRIES", text)
        with pytest.raises(PoolError, match=reason):
            setting("tries")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_web_server_gives_the_rows_samples_and_images_of_a_disk(
    ranges: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = write_pool(tmp_path / "pool", 2, 9)
    local = score(str(pool), tmp_path / "local")
    order = [15, 3, 4, 17, 3]
    wanted = [(one.image, one.caption) for one in tamis.samples_of(local, order=order)]
    content = served(pool) | {"/t/0.csv": b"image,caption\na.jpg,a cat\nb.jpg,a dog\n", "/t/a.jpg": pair(0)["jpg"]}
    with FaultyServer(files(content, ranges=ranges), first=["500", "", "reset"]) as server:
        run = score(f"{server.url}/pool/{{00000..00001}}.tar", tmp_path / "run")
        assert run.failures == {}
        assert run.to_arrow().equals(local.to_arrow())
        assert [(one.image, one.caption) for one in tamis.samples_of(run, order=order)] == wanted
        assert ("ignores Range" in caplog.text) == (not ranges)
        rows = score(f"{server.url}/t/0.csv", tmp_path / "table").index("0", ["status", "reason"]).to_pylist()
        assert [row["status"] for row in rows] == ["ok", "image_missing"]
        assert "it is not there" in rows[1]["reason"]
        if ranges:
            with open_file(f"{server.url}/t/a.jpg") as file:
                content["/t/a.jpg"] += b"more"
                with pytest.raises(RemoteError, match="the file changed while it was read"):
                    file.read()


def test_a_web_servers_folder_is_listed_though_one_request_fails(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", 3, 2)
    content = {**served(pool), "/pool/notes.txt": b"no tar"}
    for path in ("/pool", "/pool/", "/pool/*.tar", "/po*/0000[0-2].tar", "/**/*.tar"):
        with FaultyServer(files(content), first=["reset", "500", "", "truncated"]) as server:
            assert [shard.name for shard in open_pool(server.url + path).shards] == ["00000", "00001", "00002"], path
    with FaultyServer(files(content, lists=False)) as server:
        assert len(open_pool(f"{server.url}/pool/{{00000..00002}}.tar").shards) == 3


def test_a_listing_of_s3_is_whole(tmp_path: Path, s3: Any, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's own search passes over a folder whose listing fails: shards were missing without a word."""
    pool = write_pool(tmp_path / "pool", 3, 1)
    for path in sorted(pool.iterdir()):
        s3.pipe_file(f"pool/a/{path.name}", path.read_bytes())
        s3.pipe_file(f"pool/b/{path.name}", path.read_bytes())
    names = [f"s3://pool/{folder}/0000{number}.tar" for folder in "ab" for number in range(3)]
    with FaultyServer(passed_on(s3_server)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        forget_clients()
        kinds = itertools.cycle(["500", "truncated", "reset", "503"])
        for path, count in (("*/*.tar", 6), ("**/*.tar", 6), ("a/*.tar", 3), ("a", 3), ("a/{00000..00002}.tar", 3)):
            server.first = ["", next(kinds), next(kinds), "", next(kinds)]
            found = [shard.url for shard in open_pool(f"s3://pool/{path}").shards]
            assert sorted(found) == names[:count], path
        assert set(server.faults) == {"500", "truncated", "reset", "503"}


@pytest.mark.parametrize(
    ("rate", "seed"),
    [(0.1, 4), *(pytest.param(*case, marks=pytest.mark.attack) for case in ((0.01, 1), (0.05, 1), (0.2, 1)))],
)
def test_every_row_of_a_pool_on_a_faulty_s3_is_there(
    rate: float, seed: int, tmp_path: Path, s3: Any, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = write_pool(tmp_path / "pool", 6, 3)
    write_tar(pool / "00006.tar.gz", [(f"{n}", pair(n)) for n in range(3)], "w:gz")
    for path in sorted(pool.iterdir()):
        s3.pipe_file(f"pool/a/{path.name}", path.read_bytes())
    local = score(str(pool), tmp_path / "local")
    order = np.random.default_rng(0).permutation(len(local))
    wanted = [one.image for one in tamis.samples_of(local, order=order)]
    with FaultyServer(passed_on(s3_server), rate=rate, seed=seed) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        forget_clients()
        while not server.faults:
            run = score("s3://pool/a", tmp_path / f"run{len(server.requests)}")
            assert run.failures == {}
            assert run.to_arrow().equals(local.to_arrow())
            assert [one.image for one in tamis.samples_of(run, order=order)] == wanted


def test_a_shard_of_a_silent_store_is_tried_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a shard that was there when the network went away is not half a shard."""
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "2")
    monkeypatch.setattr("tamis.core.files.remote._BLOCK", 4096)
    pool = write_pool(tmp_path / "pool", 2, 30)
    local = score(str(pool), tmp_path / "local")
    content = files(served(pool))
    away = [False]

    def answer(request: Request) -> Answer:
        wanted = request.headers.get("Range", "")
        if away[0] and "00001" in request.path and int(wanted.partition("=")[2].partition("-")[0]) > 20_000:
            return Answer(500)
        return content(request)

    with FaultyServer(answer) as server:
        away[0] = True
        run = score(f"{server.url}/pool", tmp_path / "run")
        assert list(run.failures) == ["00001"]
        assert "2 tries failed, the last with HTTP 500" in run.failures["00001"]
        assert len(run) == 30  # and none of the other shard's first rows
        away[0] = False
        run = score(f"{server.url}/pool", tmp_path / "run")
        assert run.failures == {}
        assert run.to_arrow().equals(local.to_arrow())


def test_secrets_of_urls_are_in_no_file_and_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_TRIES", "2")
    pool = write_pool(tmp_path / "pool", 3, 2)
    served_files = files({**served(pool), "/t/0.csv": b"image,caption\nhttp://u:c0ffee@127.0.0.1:1/a.jpg?k=c0ffee,a\n"})

    def answer(request: Request) -> Answer:
        asked = request.headers.get("Authorization", "") + request.path
        if "Basic dXNlcjpjMGZmZWU=" not in asked and "sig=c0ffee" not in asked:
            return Answer(403, b"c0ffee")
        cut = "00002" in request.path and request.headers.get("Range") != "bytes=0-0"
        return Answer(500, b"c0ffee") if cut else served_files(request)

    with FaultyServer(answer) as server:
        host = server.url.removeprefix("http://")
        done = command(
            *("--verbose", "score", f"{server.url}/pool/{{00000..00002}}.tar?sig=c0ffee", "--run", tmp_path / "run0"),
            *("--signals", "caption_length,image_size", "--workers", "2"),
        )
        assert done.returncode == 1, done.stderr
        assert "2 tries failed" in done.stderr
        assert "c0ffee" not in done.stderr + done.stdout
        caplog.set_level("DEBUG", "tamis")
        assert len(score(f"http://user:c0ffee@{host}/pool/00001.tar", tmp_path / "run1")) == 2
        with pytest.raises(PoolError, match=r"127\.0\.0\.1:1/a\.jpg' cannot be read"):
            score(f"{server.url}/t/0.csv?sig=c0ffee", tmp_path / "run2")
        table = tamis.score(
            f"{server.url}/t/0.csv?sig=c0ffee", run=tmp_path / "run2", signals=["caption_length"], quiet=True
        )
        assert len(table) == 1
        assert Run(tmp_path / "run0").urls["00001"] == f"{server.url}/pool/00001.tar"
        # A URL that was signed again is the same shard.
        again = PoolSpec(path=f"{server.url}/pool/{{00000..00001}}.tar?more=1&sig=c0ffee")
        assert len(score(again, tmp_path / "run0")) == 4
        with pytest.raises(PoolError, match="are the same apart from user, password or query"):
            open_pool(PoolSpec(path=(f"{server.url}/get?id=1", f"{server.url}/get?id=2")))
    assert "c0ffee" not in caplog.text
    for path in sorted(tmp_path.rglob("*")):
        assert path.is_dir() or b"c0ffee" not in path.read_bytes(), path


def test_commands_after_score_find_the_secrets_of_urls_in_the_environment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = files(served(write_pool(tmp_path / "pool", 2, 2)))
    with FaultyServer(lambda asked: content(asked) if "sig=c0ffee" in asked.path else Answer(403)) as server:
        url = f"{server.url}/pool/{{00000..00001}}.tar?sig=c0ffee"
        done = command("score", url, "--run", tmp_path / "run", "--signals", "caption_length,image_size", "-q")
        assert done.returncode == 0, done.stderr
        run = Run(tmp_path / "run")
        with pytest.raises(PoolError, match=r"access was denied \(HTTP 403\).* after `score` find them in TAMIS_POOL"):
            list(tamis.samples_of(run, fields={"image"}))
        monkeypatch.setenv("TAMIS_POOL", f"https://x.org/a.tar?sig=c0ffee {url}")
        assert len(list(tamis.samples_of(run, fields={"image"}))) == 4
        assert f"TAMIS_POOL names https://x.org/a.tar, from which {run.path} was not made" in caplog.text
        tamis.select(run, "no-filter").save(tmp_path / "all.parquet")
        done = command("export", run.path, tmp_path / "all.parquet", tmp_path / "out", "--to", "webdataset")
        assert done.returncode == 0, done.stderr
    assert list((tmp_path / "out").glob("*.tar")) != []
    for path in sorted(tmp_path.rglob("*")):
        assert path.is_dir() or b"c0ffee" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.tar?sig=1&b=2", "https://host/a.tar"),
        ("https://user:word@host:8000/a.tar", "https://host:8000/a.tar"),
        ("https://token@host/a.tar", "https://host/a.tar"),
        ("sftp://user:word@host/a?.tar", "sftp://host/a?.tar"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("s3://bucket/a@b/c?.tar", "s3://bucket/a@b/c?.tar"),
        ("/some/user:word@host?a=1", "/some/user:word@host?a=1"),
    ],
)
def test_urls_are_shown_without_their_secrets(url: str, shown: str) -> None:
    assert public_url(url) == shown
    if "://" in url:
        assert redact(f"GET '{url}' failed") == f"GET '{shown}' failed"
