"""What the JSON files of a run hold; docs/data-format.md describes them.

Unknown keys are allowed. Files that are written once have a hash of all else in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from tamis.errors import DamageError, RunError, expectation
from tamis.fingerprint import json_digest
from tamis.storage import read_json

_HASH = "hash"

#: The file that describes a folder: of scores, and of stored features.
SCORER, FEATURE = "scorer.json", "feature.json"


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", strict=True)


class _Hashed(_Record):
    hash: str


class PoolSettings(_Record):
    """`pool` in run.json: how the pool is read, see `tamis.pool.PoolSpec`."""

    kind: str
    path: str | list[str] = ""
    fields: list[str] = []
    caption: str | None = None
    image: str | None = None
    format: str = "auto"
    image_extensions: list[str] = []
    max_pixels: int = 1
    max_bytes: int = 1


class ShardsFacts(_Record):
    """What run.json says of shards.parquet."""

    count: Annotated[int, pydantic.Field(ge=0)]
    digest: str


class RunFacts(_Hashed):
    """run.json."""

    format: int
    pool: PoolSettings
    shards: ShardsFacts
    created: float = 0.0
    tamis: str = "?"


class ColumnFacts(_Record):
    """A column in scorer.json; `tamis.data.Column`."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    name: str
    unit: str
    better: Literal["high", "low", "neither"]
    kind: Literal["number", "word", "vector"] = "number"
    about: str = ""
    beside: str = ""


class SideFileFacts(_Record):
    """A side file in scorer.json: of JSON the hash of what it holds, of an array its shape (the file has its hash)."""

    digest: str = ""
    shape: list[int] = []


class ScorerFacts(_Hashed):
    """scorer.json."""

    name: str
    label: str
    columns: list[ColumnFacts]
    settings: dict[str, Any] = {}
    models: dict[str, str] = {}
    identity: dict[str, Any] = {}
    side_files: dict[str, SideFileFacts] = {}
    maker: str


class FeatureFacts(_Hashed):
    """feature.json."""

    name: str
    settings: dict[str, Any] = {}
    models: dict[str, str] = {}
    identity: dict[str, Any] = {}
    maker: str


class FailureFacts(_Record):
    """failures/<shard>.json."""

    error: str
    url: str = ""
    stamp: str = ""
    cut: str | None = None
    detail: str | None = None
    lacking: list[str] | None = None  # parts that were not made


class StatusShards(_Record):
    total: int
    done: int
    failed: int


class StatusPairs(_Record):
    done: int
    total: int | None
    exact: bool = False


class StatusFacts(_Record):
    """status.json."""

    state: str
    process: Annotated[int, pydantic.Field(gt=0)]
    host: str
    numbered_in: str
    updated: float
    shards: StatusShards
    rate: float = 0.0
    eta_seconds: float | None = None
    rows: int = 0
    pairs: StatusPairs | None = None
    took: dict[str, float] = {}


class OutputsFacts(_Hashed):
    """outputs.json: the files that `tamis run` wrote outside the run, by path, each with its size and time."""

    files: dict[str, str]


class EventFacts(_Record):
    """A line of events.jsonl."""

    event: str
    shard: str
    seconds: float = 0.0


class BenchEstimate(_Record):
    """A mean with its interval in bench.json."""

    value: float | None
    low: float | None
    high: float | None


class BenchContender(_Record):
    """A recipe in bench.json."""

    name: str
    kept: int
    epochs: float | None
    score: BenchEstimate | None
    gain: BenchEstimate | None
    tasks: dict[str, dict[str, Any]]
    kinds: dict[str, Annotated[list[int], pydantic.Field(min_length=2, max_length=2)]]
    scoring_seconds: float | None
    training_seconds: float | None

    @pydantic.field_validator("tasks")
    @classmethod
    def _measured(cls, tasks: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for task, measured in tasks.items():
            if not isinstance(measured.get("value", ""), float | int | None):
                raise ValueError(f"has no value for the task {task!r}")
        return tasks


class BenchTraining(_Record):
    """How the models of bench.json were trained."""

    samples: int
    model: str


class BenchFile(_Hashed):
    """bench.json."""

    rows: int
    contenders: Annotated[list[BenchContender], pydantic.Field(min_length=1)]
    baseline: str
    seeds: list[Any]
    training: BenchTraining
    overlap: dict[str, dict[str, float | None]]
    failed: dict[str, str]

    @pydantic.model_validator(mode="after")
    def _overlaps(self) -> Self:
        names = {contender.name for contender in self.contenders}
        if any(not names <= set(self.overlap.get(name, {})) for name in names):
            raise ValueError("overlap does not tell of every two recipes")
        return self


class TrainingResult(_Record):
    """`result` in training.json: what came of a training that is done."""

    steps: int
    samples: int
    pairs: int
    unreadable: int
    seconds: float = 0.0
    samples_per_second: float
    utilisation: float


class TrainingFile(_Hashed):
    """training.json of a model that we train."""

    settings: dict[str, Any]
    result: TrainingResult | None = None


class CellFile(_Hashed):
    """A file in `cells` of a bench: a model that was trained and evaluated."""

    seed: int
    samples: int
    pairs: int
    unreadable: int
    training_seconds: float
    evaluation_seconds: float
    scores: Annotated[dict[str, pydantic.FiniteFloat], pydantic.Field(min_length=1)]


class TaskFile(_Hashed):
    """What a model scores on a zero-shot task."""

    task: str
    name: str
    kind: Literal["classification", "retrieval", "association"]
    metric: str
    metrics: dict[str, pydantic.FiniteFloat | None]
    images: int
    unusable: int
    reasons: dict[str, str]
    classes: int
    groups: dict[str, dict[str, Annotated[list[float], pydantic.Field(min_length=2, max_length=2)]]]


class ScoringStep(_Record):
    """An entry of a bench's scoring.json."""

    parts: list[str]
    seconds: float


class LookProposal(_Record):
    """A recipe that is worth trying."""

    recipe: str
    why: str
    share: Annotated[list[float], pydantic.Field(min_length=3, max_length=3)] | None
    commands: list[str]


class LookFile(_Hashed):
    """look.json."""

    pairs: int
    shards: int
    of: int
    seconds: float
    proposals: list[LookProposal]


def read_checked(path: Path, record: type[pydantic.BaseModel]) -> dict[str, Any]:
    """Returns the content of a JSON file, as it is written there.

    Raises:
        DamageError: it is not what the format says, or not what was written.
    """
    value = read_json(path)
    check(path, value, record)
    assert isinstance(value, dict), "records are objects"
    return value


def with_hash(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a file with a hash of all of it, which `check` compares."""
    plain = {key: value for key, value in facts.items() if key != _HASH}
    return {**plain, _HASH: json_digest(plain)}


def description_of(folder: Path) -> Path:
    """Returns the file that describes a folder of parts."""
    return folder / (SCORER if folder.parent.name == "scores" else FEATURE)


def described(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a description as its file holds it: with its folder and its hash."""
    return with_hash({**facts, "maker": folder.name})


def read_description(path: Path) -> dict[str, Any]:
    """Returns the description of the folder that a file is in.

    Raises:
        DamageError: it is damaged, or was written for another folder.
        RunError: it cannot be read.
    """
    facts = read_checked(path, ScorerFacts if path.name == SCORER else FeatureFacts)
    if facts["maker"] != path.parent.name:
        raise damaged(path, f"it was written for {facts['maker']}, not for {path.parent.name}")
    return facts


def read_result(path: Path, record: type[pydantic.BaseModel], *, of: str, command: str) -> dict[str, Any]:
    """Returns a result that a command has written and can write again.

    Args:
        path: the file.
        record: what it should hold.
        of: whose result it is, for the message: "a cell".
        command: what writes it again.

    Raises:
        DamageError: it is not what was written.
    """
    try:
        return read_checked(path, record)
    except DamageError as error:
        raise DamageError(f"{path} is damaged, and holds no result of {of}: delete it and repeat {command}") from error


def read_left(path: Path, command: str, version: int, record: type[pydantic.BaseModel]) -> dict[str, Any] | None:
    """Returns what a command left in a run folder, in a file that names the command and a format; None: nothing.

    Raises:
        RunError: the file is damaged, or of another version.
    """
    if not path.is_file():
        return None
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("kind") != command or facts.get("format") != version:
        what = command.removeprefix("tamis ")
        raise RunError(f"{path} is no {what} that this version of tamis reads: delete it, or repeat `{command}`")
    check(path, facts, record)
    return facts


def read_lines(path: Path, record: type[pydantic.BaseModel]) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file that grows, each a JSON object. A last line that a killed process cut is skipped.

    Raises:
        DamageError: another line is not what the format says.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except ValueError as error:
        raise damaged(path, "it is not UTF-8") from error
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return
            raise damaged(path, f"line {number} is no JSON ({error})") from error
        check(path, value, record)
        yield value


def check(path: Path, value: Any, record: type[pydantic.BaseModel]) -> None:
    """Checks the content of a file.

    Raises:
        DamageError: it is not what the format says, or its hash differs.
    """
    try:
        record.model_validate(value)
    except pydantic.ValidationError as error:
        # Where several types are allowed, the deepest error is of the one that fits best.
        first = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
        place = ".".join(str(part) for part in first["loc"] if not str(part).endswith(("Facts", "]")))
        what = expectation(first["msg"])
        found = "" if first["type"] == "missing" else f", found {_brief(first['input'])}"
        where = f"{place!r}: " if place else ""
        raise damaged(path, f"{where}{what[:1].lower()}{what[1:]}{found} (see docs/data-format.md)") from error
    if issubclass(record, _Hashed) and not _hash_holds(value):
        raise damaged(path, "its content is not what was written")


def _hash_holds(facts: Mapping[str, Any]) -> bool:
    try:
        return bool(with_hash(facts)[_HASH] == facts[_HASH])
    except ValueError:  # NaN, or half of a surrogate pair: nothing of ours
        return False


def damaged(path: Path, what: str) -> DamageError:
    """Returns the error of a JSON file that is not what was written."""
    advice = {
        "run.json": "restore it, or start another run folder",
        "training.json": "restore it, or delete the model's folder and repeat the command",
        **dict.fromkeys(("scoring.json", "bench.json"), "delete it, and repeat `tamis bench`"),
    }
    usual = "restore it, or delete it: `tamis check RUN --delete` does, and `tamis score` writes what it needs again"
    return DamageError(f"{path} is damaged: {what}; {advice.get(path.name, usual)}", what)


def _brief(value: Any) -> str:
    text = repr(value) if isinstance(value, (int, float, bool, type(None))) else type(value).__name__
    return repr(value) if isinstance(value, str) and len(value) <= 40 else text
