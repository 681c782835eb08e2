"""`tamis_lab.testing` catches a plug-in that breaks a promise, and says which promise and with which values."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tamis.core.errors import ModelError
from tamis.core.files.storage import writing
from tamis.core.types import Column, Device, Node, Sample, Samples, Signal
from tamis.exports import Exporter, KeysExport
from tamis.recipes.steps import AtLeast, Equals, Selection
from tamis.recipes.steps.outcome import verdict
from tamis.runs.subset import Subset
from tamis.runs.table import Table
from tamis_lab.testing import check_exporter, check_selector, check_signal, pairs

Values = dict[str, Any]


def broken(check: Callable[[], None]) -> str:
    """Returns what is said about a broken promise."""
    with pytest.raises(Exception) as error:  # noqa: PT011  # a plug-in's own error comes as it is
        check()
    return f"{type(error.value).__name__}: {error.value}"


@dataclass(frozen=True, kw_only=True)
class Good(Signal):
    """Scores a pair by the length of its caption.

    Attributes:
        how: what is done with the samples.

    Emits:
        good: letters. NaN where there is no caption.

    Cost: nothing.
    """

    name: ClassVar[str] = "good"
    columns: ClassVar[tuple[Column, ...]] = (Column(name="good", unit="letters", better="high", about="letters"),)

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        return self.score

    def score(self, *, samples: Sequence[Sample]) -> Values:
        return {"good": lengths(samples)}


def lengths(samples: Sequence[Sample]) -> Any:
    return np.array([np.nan if s.caption is None else len(s.caption) for s in samples], np.float32)


def faulty(base: type[Any], **body: Any) -> Any:
    """Returns a record as `base`, with other methods or class attributes."""
    body.setdefault("__annotations__", {})
    cls = dataclass(frozen=True, kw_only=True)(type("Faulty", (base,), {"__module__": __name__, **body}))
    globals()["Faulty"] = cls  # where pickle looks for it
    return cls()


def signal(**body: Any) -> Signal:
    return faulty(Good, **body)  # type: ignore[no-any-return]


def loose(cls: type[Any], *bases: type[Any]) -> Any:
    """Returns a record of the same body that is not frozen."""
    made = {"__dataclass_fields__", "__dataclass_params__", "__setattr__", "__delattr__", "__hash__", "__eq__"}
    body = {name: value for name, value in vars(cls).items() if name not in {*made, "__dict__", "__weakref__"}}
    globals()["Loose"] = dataclass(unsafe_hash=True)(type("Loose", bases, body | {"__qualname__": "Loose"}))
    return globals()["Loose"]()


def forgetful(self: Any) -> Any:
    """Pickles a record without what its `__post_init__` has put into it."""
    return object.__new__, (type(self),)


FORGETFUL = {"__post_init__": lambda self: vars(self).update(more=1), "__reduce__": forgetful}


def scores(values: Callable[[Sequence[Sample]], Any], **body: Any) -> Signal:
    return signal(score=lambda self, *, samples: {"good": values(samples)}, **body)


def judged(samples: Sequence[Sample], values: Callable[[Sample], float]) -> Any:
    return np.array([np.nan if s.caption is None else values(s) for s in samples], np.float32)


def spoil(samples: Sequence[Sample]) -> Any:
    for one in samples:
        one.caption = (one.caption or "").upper() or None
    return lengths(samples)


BEFORE, TURN = [""], itertools.count()


def after_the_first(samples: Sequence[Sample]) -> Any:
    """Gives the pair that comes after the first drawn one more, in whatever batch."""
    keys = [*BEFORE, *(one.key for one in samples)]
    BEFORE[:] = keys[-1:]
    return lengths(samples) + np.array([key == "drawn-0" for key in keys[:-1]], np.float32)


def column(**changes: Any) -> tuple[Column, ...]:
    return (replace(Good.columns[0], **changes),)


FAULTY_SIGNALS: list[tuple[Callable[[], Any], str]] = [
    (lambda: signal(name="Loud!"), "'Loud!'"),
    (lambda: signal(columns=()), "no column"),
    (lambda: signal(columns=column() * 2), "['good', 'good']"),
    (lambda: signal(columns=column(name="reason")), "['reason']"),
    (lambda: signal(columns=column(kind="vector")), "not vectors"),
    (lambda: signal(columns=column(beside="x")), "beside='x'"),
    (lambda: signal(__annotations__={"label": "str"}, label=""), "called label"),
    (lambda: loose(Good, Signal), "frozen=True"),
    (lambda: signal(__annotations__={"words": "frozenset[str]"}, words=frozenset("a")), "JSON"),
    (lambda: signal(score=lambda self, *, samples: {"godo": lengths(samples)}), "it emits 'godo'"),
    (lambda: scores(lambda samples: lengths(samples).astype(np.float64)), "got float64"),
    (lambda: scores(lambda samples: lengths(samples) * np.float32("inf")), "infinite in the rows [0, 1, 2, 3, 4, 5, 7"),
    (lambda: scores(lambda samples: lengths(samples) * np.float32("nan")), "any of 5 good pairs"),
    (lambda: scores(lambda samples: lengths(samples) + next(TURN)), "in a second run"),
    (lambda: scores(lambda samples: lengths(samples) + (len(samples) == 4)), "in batches of 4 30.0"),
    (lambda: scores(after_the_first), "'drawn-4' is 29.0, and in another place 30.0"),
    (lambda: scores(lambda samples: np.stack([lengths([one])[0] for one in samples])), "at least one array to stack"),
    (lambda: scores(lambda samples: np.nan_to_num(lengths(samples))), "without caption and image"),
    (
        lambda: signal(score=lambda self, *, samples: {"good": lengths(samples), "reason": [""] * len(samples)}),
        "a reason must be None or a sentence",
    ),
    (
        lambda: signal(
            score=lambda self, *, samples: {"good": lengths(samples) + vars(self).get("more", 0)}, **FORGETFUL
        ),
        "after pickling 29.0",
    ),
    (lambda: scores(spoil), "changes the pairs ['drawn-0'"),
    (
        lambda: scores(
            lambda samples: judged(samples, lambda s: -1 if s.pixels is None and s.status == "ok" else 1), in_index=True
        ),
        "in_index",
    ),
]


@pytest.mark.parametrize(("made", "names"), FAULTY_SIGNALS, ids=lambda value: "" if callable(value) else value)
def test_a_faulty_signal_is_caught(made: Callable[[], Any], names: str) -> None:
    assert names in broken(lambda: check_signal(made()))


def test_a_good_signal_passes() -> None:
    check_signal(Good(), looks_at=["caption"])
    check_signal(Good(), looks_at={"good": ["caption"]})
    check_signal(scores(lambda samples: np.array([s.given["similarity"] for s in samples], np.float32)), looks_at=())
    rounding = scores(lambda samples: lengths(samples) + np.float32(1e-4) * (len(samples) == 4))
    check_signal(rounding, tolerance=1e-3)
    assert "tolerance=1e-05" in broken(lambda: check_signal(rounding, tolerance=1e-5))


def test_what_a_signal_looks_at_is_checked_both_ways() -> None:
    assert "for a pair without image" in broken(lambda: check_signal(Good(), looks_at=["image", "caption"]))
    both = scores(lambda samples: np.where([s.pixels is None for s in samples], np.nan, lengths(samples)).astype("f4"))
    assert "missing without image" in broken(lambda: check_signal(both, looks_at=["caption"]))
    check_signal(both, looks_at=["image", "caption"])


def test_a_signal_can_bring_pairs_that_it_judges() -> None:
    digits = scores(
        lambda samples: judged(samples, lambda s: float("".join(filter(str.isdigit, s.caption or "")) or "nan"))
    )
    assert "good=[...]" in broken(lambda: check_signal(digits))
    good = pairs.good_pairs()
    for number, one in enumerate(good):
        one.caption = f"{number + 3} boats"
    check_signal(digits, good=good)


@pytest.mark.parametrize(
    ("check", "cls"), [(check_signal, Good), (check_selector, AtLeast), (check_exporter, KeysExport)]
)
def test_a_class_is_not_an_object(check: Callable[[Any], None], cls: type[Any]) -> None:
    with pytest.raises(TypeError, match=rf"{cls.__name__}\(\)"):
        check(cls)


def test_a_model_that_is_missing_breaks_no_promise() -> None:
    def load(self: Any, device: Device) -> Any:
        raise ModelError("fetch it")

    with pytest.raises(ModelError, match="fetch it"):
        check_signal(signal(load=load))


def test_the_drawn_pairs_are_always_the_same_and_all_different() -> None:
    one, two = pairs.good_pairs(), pairs.good_pairs()
    assert [s.uid for s in one] == [s.uid for s in two]
    assert len({s.uid for s in one}) == len({s.caption for s in one}) == 5
    assert all(s.status == "ok" and s.pixels is not None and s.pixels.std() > 5 for s in one)
    batch = pairs.batch_of(one)
    assert [s.status for s in batch] == ["ok"] * 6 + ["caption_missing", "image_broken", "caption_missing"] + ["ok"] * 2


@dataclass(frozen=True, kw_only=True)
class Above:
    """Keeps rows whose column is above a value."""

    name: ClassVar[str] = "above"
    score: str = "a"
    value: float = 0.1
    missing: str = "drop"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.score})

    def select(self, table: Table) -> Selection:
        return self.judged(table, lambda a: a > self.value)

    def judged(self, table: Table, good: Callable[[Any], Any]) -> Selection:
        a = np.full(len(table), np.nan, np.float32)

        def read(place: slice, columns: Values) -> None:
            a[place] = columns[self.score]

        list(table.map([self.score], read))
        candidates = table.candidates
        with np.errstate(invalid="ignore"):
            keep = np.asarray(good(a), bool)
        return verdict(self, keep & candidates, np.isnan(a) & candidates, candidates, "too low", 0.1)


def step(**body: Any) -> Any:
    return faulty(Above, **body)


def selects(change: Callable[[Any, Table, Selection], Selection], **body: Any) -> Any:
    def select(self: Any, table: Table) -> Selection:
        return change(self, table, Above.select(self, table))

    return step(select=select, **body)


def counted(found: Selection, **counts: int) -> Selection:
    return replace(found, counts={**found.counts, **counts})


def shrink(self: Any, table: Table, found: Selection) -> Selection:
    table.candidates[:] = found.keep
    return found


def first_alone(table: Table) -> Any:
    return lambda a: (a > 0.1) & (np.arange(len(table)) > 3)


FAULTY_STEPS: list[tuple[Callable[[], Any], str]] = [
    (lambda: step(reads=property(lambda self: ["a"])), "frozenset of column names"),
    (lambda: step(described="two\nlines"), "one line"),
    (lambda: selects(lambda s, t, f: f.keep), "not a ndarray"),  # type: ignore[arg-type,return-value]
    (lambda: selects(lambda s, t, f: replace(f, keep=f.keep[:-1])), "must be (23,) bool, got (22,) bool"),
    (lambda: selects(lambda s, t, f: replace(f, keep=np.ones(len(t), bool))), "[0, 2, 8, 18, 20, 22]"),
    (lambda: selects(lambda s, t, f: counted(f, more=1)), "do not add up"),
    (lambda: selects(lambda s, t, f: replace(f, counts={"kept": 17})), "do not add up"),
    (lambda: selects(lambda s, t, f: counted(f, kept=f.counts["kept"] + 1)), "do not add up"),
    (lambda: step(reads=property(lambda self: frozenset({"a", "b"}))), "names ['a', 'b']"),
    (lambda: selects(lambda s, t, f: (list(t.map(["unread"], lambda *x: 0)), f)[1]), "reads ['a', 'unread']"),
    (lambda: selects(lambda s, t, f: s.judged(t, first_alone(t))), "in another order"),
    (lambda: selects(shrink), "candidates"),
    (lambda: selects(lambda s, t, f: s.judged(t, lambda a: a > 0.1 + next(TURN) % 2)), "a second time"),
    (lambda: selects(lambda s, t, f: s.judged(t, lambda a: a >= a[t.candidates].max())), "zero-size array"),
    (lambda: step(select=lambda self, table: replace(self, missing="drop").judged(table, lambda a: a > 0.1)), "error`"),
    (lambda: selects(lambda s, t, f: s.judged(t, lambda a: a > vars(s).get("more", 0)), **FORGETFUL), "pickling"),
    (lambda: selects(lambda s, t, f: replace(f, facts={"rows": f.keep})), "JSON"),
    (lambda: selects(lambda s, t, f: replace(f, cut="high")), "JSON"),  # type: ignore[arg-type]
    (lambda: selects(lambda s, t, f: replace(f, order=np.flatnonzero(f.keep)[1:])), "order must be int64"),
    (lambda: selects(lambda s, t, f: replace(f, order=np.flatnonzero(f.keep))), "order changes in another order"),
    (lambda: loose(Above), "frozen=True"),
]


@pytest.mark.parametrize(("made", "names"), FAULTY_STEPS, ids=lambda value: "" if callable(value) else value)
def test_a_faulty_selector_is_caught(made: Callable[[], Any], names: str) -> None:
    assert names in broken(lambda: check_selector(made()))


def test_a_good_selector_passes() -> None:
    check_selector(Above())
    check_selector(Above(missing="error"))
    check_selector(Equals(score="tongue", value="en", missing="drop"), columns={"tongue": "word"})
    check_selector(AtLeast(score="a + 2*b", value=0.2, missing="drop"), columns={"a": np.arange(9.0, dtype="f4")})


@dataclass(frozen=True, kw_only=True)
class Rows(Exporter):
    """Writes the number of each kept row."""

    name: ClassVar[str] = "rows"

    def write(self, subset: Subset, out: Path) -> int:
        return self.text(subset, out)

    def text(self, subset: Subset, out: Path, more: str = "") -> int:
        rows: list[int] = np.flatnonzero(subset.keep).tolist()
        with writing(out) as temporary:
            temporary.write_text(json.dumps(rows) + more)
        return len(rows)


def exporter(write: Callable[[Any, Subset, Path], Any] | None = None, **body: Any) -> Any:
    if write is not None:
        body["write"] = lambda self, subset, out: write(self, subset, out)
    return faulty(Rows, **body)


def plain(self: Any, subset: Subset, out: Path) -> int:
    out.write_text("x")
    return len(subset)


def logs(self: Any, subset: Subset, out: Path) -> int:
    self.text(subset, out.with_name("log"))
    return int(self.text(subset, out))


def writes_into_the_run(self: Any, subset: Subset, out: Path) -> int:
    self.text(subset, subset.run.path / "mine")
    return int(self.text(subset, out))


FAULTY_EXPORTERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: AtLeast(score="a", value=1), "does not derive from tamis.exports.Exporter"),
    (lambda: exporter(lambda self, subset, out: self.text(subset, out) and None), "returns None"),
    (lambda: exporter(lambda self, subset, out: len(subset) and self.text(subset, out)), "wrote []"),
    (lambda: exporter(lambda self, subset, out: self.text(subset, out, str(out))), "differently"),
    (lambda: exporter(lambda self, subset, out: self.text(subset, out, "again" * out.exists())), "differently"),
    (lambda: exporter(logs), "['log', 'out']"),
    (lambda: exporter(writes_into_the_run), "run/mine"),
    (lambda: exporter(plain), "NotADirectoryError"),
]


@pytest.mark.parametrize(("made", "names"), FAULTY_EXPORTERS, ids=lambda value: "" if callable(value) else value)
def test_a_faulty_exporter_is_caught(made: Callable[[], Any], names: str) -> None:
    assert names in broken(lambda: check_exporter(made()))


def test_checking_needs_neither_pytest_nor_torch() -> None:
    code = (
        "import sys\n"
        "from tamis_lab.testing import check_signal, check_selector, check_exporter\n"
        "from tamis.signals import CaptionLength\n"
        "from tamis.recipes.steps import TopN\n"
        "from tamis.exports import NpyExport\n"
        "check_signal(CaptionLength(), looks_at=['caption'])\n"
        "check_selector(TopN(score='a', n=3, missing='drop'))\n"
        "check_exporter(NpyExport())\n"
        "print(sorted({'pytest', 'torch', 'transformers', 'onnxruntime'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
