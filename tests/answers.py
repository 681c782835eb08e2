"""Keeps every answer Tamis gives on three small pools as plain files, and compares two such folders.

A change that must not move a score or a subset is checked with it:

    .venv/bin/python tests/answers.py record before [--photographs FOLDER]    # on the commit before
    .venv/bin/python tests/answers.py record after [--photographs FOLDER]     # on the commit after
    .venv/bin/python tests/answers.py compare before after                    # prints nothing where nothing moved

It talks to Tamis only as users do (commands and public names), so it outlives what it watches. Both recordings must
come from one machine: another processor rounds differently. Each takes about ten minutes on two cores.
"""

import argparse
import difflib
import hashlib
import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
import tiny_models

#: Signals that run on a thousand pairs in minutes.
USUAL = """\
  - caption_length
  - image_size
  - language
  - image_hash
  - text_area
  - text_match
  - class_mentions
  - clip: {model: lab/clip}
  - tmars: {model: lab/clip}
  - sieve: {captioner: lab/captioner, sampling: {captions: 3}}
  - icc: {model: norms}
  - class_similarity: {encoder: minilm}
  - zero_shot_class: {model: lab/clip, classes_from: CLASSES}
"""

#: The others: of tiny checkpoints with random weights, or slow.
RARE = """\
  - c_rho: {clean: lab/clip, pool: lab/clip-noisy}
  - c_ssft: {folder: MODELS/epochs, epochs: 2}
  - pac: {model: lab/clip}
  - clip_stroop: {model: lab/clip}
  - complexity_action: {parser: MODELS/spacy}
  - sba: {bridge: MODELS/bridge, beams: 2, max_tokens: 6}
  - ave_clip: {model: lab/clip, text_to_image: lab/text-to-image, pictures: 2, drawing: {steps: 2}}
  - vba: {text_to_image: lab/text-to-image, captioner: lab/captioner, encoder: MODELS/tokens, beams: 2, max_tokens: 6,
          drawing: {steps: 2}}
"""

#: Recipes that want more than a name.
SETTINGS = {
    "image-based": "select.4.image_based.reference=REFERENCE",
    "image-and-clip": "select.1.all_of.1.3.image_based.reference=REFERENCE",
    "sieve-and-imagenet": "select.1.all_of.1.0.image_based.reference=REFERENCE",
    "sieve+clip-and-imagenet": "select.1.all_of.1.0.image_based.reference=REFERENCE",
}

#: What differs from one recording to the next without being an answer: times, paths, fingerprints, sizes of files.
PASSING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "FINGERPRINT"),
)
SKIPPED = {
    *("seconds", "rate", "eta", "started", "updated", "elapsed", "created", "per_second"),
    *("bytes", "host", "pid", "tamis", "format"),
}


def tamis(*words: str, log: Path) -> None:
    """Runs a command on one thread; what it prints goes to the end of `log`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tamis", *words], capture_output=True, text=True, check=False, env=environment
    )
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ tamis {' '.join(words)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        raise RuntimeError(f"tamis {' '.join(words)} failed:\n{done.stderr[-2000:]}")


def pools(work: Path, photographs: Path | None, pairs: int) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Makes the pools, and returns each with the signals it is scored by, a call of `tamis score` each."""
    from tamis_lab.world import OBJECTS

    (work / "classes.txt").write_text("".join(f"{name}\n" for name in OBJECTS))
    models = work / "models"
    models.mkdir()
    tiny_models.epochs_folder(models / "epochs")
    tiny_models.spacy_folder(models / "spacy")
    tiny_models.regression_folder(models / "tokens")
    clip, language_model = tiny_models.clip_folder(models / "clip"), tiny_models.language_model_folder(models / "words")
    tiny_models.bridge_folder(models / "bridge", str(clip), str(language_model))
    log = work / "log.txt"
    tamis("lab", "make-pool", str(work / "lab"), "--pairs", str(pairs), "--shard-size", str(pairs // 4), log=log)
    tamis("lab", "make-pool", str(work / "few"), "--pairs", "60", "--mix", "hard", "--shard-size", "20", log=log)
    made = {"lab": (work / "lab", (USUAL,)), "few": (work / "few", (USUAL, RARE))}
    if photographs is not None:
        folder = work / "photographs"
        folder.mkdir()
        for tars in sorted(path for path in photographs.iterdir() if path.is_dir()):
            first = min(tars.glob("*.tar"))
            shutil.copy(first, folder / f"{tars.name}-{first.name}")
        made["photographs"] = (folder, (USUAL,))
    return made


def record(out: Path, photographs: Path | None, pairs: int) -> None:
    """Scores, selects, reports and exports, in a working folder in `out`; keeps what came of it, and only that."""
    out.mkdir(parents=True)
    work = out / "work"
    work.mkdir()
    for name, (pool, calls) in pools(work, photographs, pairs).items():
        for precision in ("float32", "default"):
            place = out / f"{name}-{precision}"
            place.mkdir()
            recipe = work / "scores.yaml"
            run = work / f"run-{name}-{precision}"
            words = [] if precision == "default" else ["--precision", precision]
            for signals in calls:
                text = f"signals:\n{signals}" + "keep: [embeddings, captions, texts]\n" * (signals == USUAL)
                text = text.replace("CLASSES", str(work / "classes.txt")).replace("MODELS", str(work / "models"))
                recipe.write_text(text)
                tamis(
                    "score", str(pool), "--run", str(run), "--recipe", str(recipe), "--threads", "1", "--workers", "2",
                    "--quiet", *words, log=place / "log.txt",
                )  # fmt: skip
            keep_rows(run, place)
            keep_choices(run, place)
    shutil.rmtree(work)


def keep_rows(run: Path, place: Path) -> None:
    """Keeps every column, embedding and stored text."""
    import tamis as library

    opened = library.open_run(run)
    index = ["status", "reason", "width", "height", "image_bytes"]
    known = [name for name in index if name in opened.index(opened.shards[0]).column_names]
    own = opened.to_arrow()
    more = opened.to_arrow([name for name in known if name not in own.column_names and name != "reason"])
    table = pa.table(
        {name: column for each in (own, more) for name, column in zip(each.column_names, each.columns, strict=True)}
    )
    pq.write_table(table, place / "rows.parquet")
    for name in opened.embeddings:
        parts = [np.asarray(opened.embedding(name, shard)) for shard in opened.shards]
        np.save(place / f"{_plain(name)}.npy", np.concatenate(parts))
    for name in opened.texts:
        lines = [json.dumps(texts) for shard in opened.shards for texts in opened.texts_of(name, shard)]
        (place / f"{_plain(name)}.jsonl").write_text("\n".join(lines))


def keep_choices(run: Path, place: Path) -> None:
    """Keeps what each shipped recipe chooses, and what the report, the status and the exports say."""
    import tamis as library

    opened = library.open_run(run)
    chosen: list[Any] = []
    new = "any_model" in inspect.signature(library.select).parameters  # commits before it choose by any model
    for name in shipped():
        setting = SETTINGS.get(name, "").replace("REFERENCE", str(run))
        try:
            subset = library.select(
                opened, name, settings=[setting] if setting else [], **({"any_model": True} if new else {})
            )
        except library_error() as error:
            lines = [f"{type(error).__name__}: {error}"]
        else:
            uids = [
                f"{high:016x}{low:016x}" for high, low in zip(*(half.tolist() for half in subset.uids()), strict=True)
            ]
            lines = [json.dumps(subset.funnel), *uids]
            chosen += [subset] if name in ("basic", "clip-30", "tmars", "distinct") else []
        (place / f"subset {name}.txt").write_text(_settled("\n".join(lines), run))
    library.report(opened, chosen, out=place / "report.html")
    page = _settled((place / "report.html").read_text(encoding="utf-8"), run)
    (place / "report.html").write_text(page.replace(">", ">\n"), encoding="utf-8")
    facts = json.loads((place / "report.json").read_text(encoding="utf-8"))
    (place / "report.json").write_text(_settled(json.dumps(_lasting(facts), indent=1), run), encoding="utf-8")
    command = [sys.executable, "-m", "tamis", "status", str(run), "--json"]
    status = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    (place / "status.json").write_text(_settled(json.dumps(_lasting(status), indent=1, sort_keys=True), run))
    for to, file in (
        ("npy", "kept.npy"),
        ("parquet", "kept.parquet"),
        ("keys", "kept.txt"),
        ("dropped", "dropped.parquet"),
    ):
        library.export(chosen[0], to, place / file)
    tars = place / "tars"
    library.export(chosen[0], "webdataset", tars)
    (place / "webdataset.txt").write_text("\n".join(members(tars)))
    shutil.rmtree(tars)


def members(folder: Path) -> Iterator[str]:
    """Yields a line for each member of the tars of a folder: its name and its bytes' hash."""
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                yield f"{path.name} {member.name} {hashlib.sha256(file.read()).hexdigest()}"


def shipped() -> list[str]:
    """The names of the shipped recipes."""
    import tamis.recipes.shipped

    return sorted(path.stem for path in Path(tamis.recipes.shipped.__path__[0]).glob("*.yaml"))


def library_error() -> type[Exception]:
    """What the library raises of its own."""
    from tamis.core.errors import TamisError

    return TamisError


def _plain(name: str) -> str:
    return name.rpartition("-")[0] or name


def _settled(text: str, run: Path) -> str:
    text = text.replace(str(run), "RUN").replace(str(run.parent), "WORK")
    for pattern, word in PASSING:
        text = pattern.sub(word, text)
    return text


def _lasting(value: Any) -> Any:
    """Returns JSON without what says when and how fast."""
    if isinstance(value, dict):
        return {key: _lasting(inner) for key, inner in value.items() if key not in SKIPPED}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value


def compare(before: Path, after: Path) -> int:
    """Prints each difference; returns how many files differ."""
    names = {
        str(path.relative_to(folder)) for folder in (before, after) for path in folder.rglob("*") if path.is_file()
    }
    count = 0
    for name in sorted(name for name in names if not name.endswith("log.txt")):
        old, new = before / name, after / name
        if not (old.is_file() and new.is_file()):
            lines = [f"only in {before if old.is_file() else after}"]
        elif name.endswith(".parquet"):
            lines = list(table_differences(pq.read_table(old), pq.read_table(new)))
        elif name.endswith(".npy"):
            lines = list(array_differences(np.load(old), np.load(new)))
        else:
            texts = [path.read_text(encoding="utf-8").splitlines() for path in (old, new)]
            lines = [line[:200] for line in difflib.unified_diff(*texts, lineterm="", n=0)][2:12]
        if lines:
            count += 1
            print(name, *lines, sep="\n  ")
    return count


def table_differences(old: pa.Table, new: pa.Table) -> Iterator[str]:
    """Yields a line for each column that differs."""
    if old.num_rows != new.num_rows:
        yield f"{old.num_rows} rows, now {new.num_rows}"
        return
    for name in [*old.column_names, *(name for name in new.column_names if name not in old.column_names)]:
        if name not in old.column_names or name not in new.column_names:
            yield f"column {name} is {'new' if name in new.column_names else 'gone'}"
        elif (a := old[name].to_pylist()) != (b := new[name].to_pylist()):
            rows = [row for row, (x, y) in enumerate(zip(a, b, strict=True)) if x != y and not (x != x and y != y)]
            if rows:
                yield f"column {name}: {len(rows)} rows differ, row {rows[0]}: {a[rows[0]]!r}, now {b[rows[0]]!r}"


def array_differences(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> Iterator[str]:
    """Yields a line where two arrays differ in any bit."""
    if old.shape != new.shape or old.dtype != new.dtype:
        yield f"{old.shape} {old.dtype}, now {new.shape} {new.dtype}"
    elif old.tobytes() != new.tobytes():
        yield f"{int((old != new).sum())} of {old.size} values differ"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--photographs", type=Path, help="folder of folders of tars; the first tar of each")
    recording.add_argument("--pairs", type=int, default=1000, help="of the larger lab pool")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    logging.disable()  # that recipes name other models than the run has
    if given.command == "record":
        record(given.out.resolve(), given.photographs, given.pairs)
        return 0
    return int(bool(compare(given.before, given.after)))


if __name__ == "__main__":
    sys.exit(main())
