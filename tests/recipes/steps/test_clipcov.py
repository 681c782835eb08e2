"""The step clipcov compared with `tamis.core.math.clipcov`, and what must not matter to it."""

import math
from typing import Any

import numpy as np
import pytest

import tamis.recipes.steps.clipcov as module
from tamis.core.errors import RecipeError
from tamis.core.ids import scramble
from tamis.core.math import clipcov as formulas
from tamis.core.math.similarity import unit_rows
from tamis.core.types import CLASS_NAMES, CLASS_VECTORS
from tamis.recipes.steps import ClipCov, run_steps
from tamis.runs.table import MemoryTable, Table

Array = np.ndarray[Any, Any]

ROWS, CLASSES = 160, 5
PLAIN = ("cov", "class_reg", "inter")
KINDS = tuple(f"class {k}" for k in range(CLASSES))


def columns(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, 16)) + 0.8
    kind = np.minimum(rng.geometric(0.45, ROWS) - 1, CLASSES - 1)
    middle = centres[kind] + 0.5 * rng.normal(size=(ROWS, 16))
    images = unit_rows(middle + 0.4 * rng.normal(size=(ROWS, 16))).astype(np.float16)
    texts = unit_rows(middle + 0.4 * rng.normal(size=(ROWS, 16))).astype(np.float16)
    return {"image_embedding": images, "text_embedding": texts, "kind": [f"class {k}" for k in kind]}


def uids(seed: int = 1) -> tuple[Array, Array]:
    high, low = np.random.default_rng(seed).integers(0, 2**64, (2, ROWS), dtype=np.uint64)
    return high, low


def table(
    order: Array | None = None, block: int = 1000, side_files: dict[tuple[str, str], Any] | None = None, **changed: Any
) -> Table:
    held, (high, low) = columns() | changed, uids()
    order = np.arange(ROWS) if order is None else order
    moved = {
        name: value[order] if isinstance(value, np.ndarray) else [value[row] for row in order]
        for name, value in held.items()
    }
    made: Any = MemoryTable(moved, uids=(high[order], low[order]), block=block)
    made.side_file = lambda name, file: (side_files or {}).get((name, file))
    return made


def step(**settings: Any) -> ClipCov:
    return ClipCov(**({"n": 40, "per": "kind", "terms": PLAIN} | settings))


def expected(count: int, terms: tuple[str, ...] = PLAIN, inter: str = "mean", share: float = 1) -> list[int]:
    """The ranking from `tamis.core.math.clipcov` with the classes gone through one by one."""
    held, (high, low) = columns(), uids()
    words = np.array(held["kind"])
    images, texts = unit_rows(held["image_embedding"]), unit_rows(held["text_embedding"])
    names = sorted(set(words))
    members = []
    for name in names:
        rows = np.flatnonzero(words == name)
        members.append(rows[np.argsort(scramble(high[rows], low[rows]))])
    means = [(images[rows].mean(0), texts[rows].mean(0)) for rows in members]
    scale = 1 if inter == "sum" else 1 / (len(names) - 1)
    picks, ties = [], []
    for k, rows in enumerate(members):
        others = tuple(scale * sum(means[j][side] for j in range(len(names)) if j != k) for side in (0, 1))
        modular = formulas.modular_gains(images[rows], texts[rows], terms=terms, others=others)  # type: ignore[arg-type]
        weight = formulas.pair_weight(len(rows), terms, share=share)
        found = formulas.greedy(images[rows], texts[rows], modular, weight=weight, count=count)
        picks.append(found)
        ties.append(scramble(high[rows[found.rows]], low[rows[found.rows]]))
    taken = np.concatenate([rows[each.rows] for rows, each in zip(members, picks, strict=True)])
    return [int(row) for row in taken[formulas.merge(picks, ties, count)]]


@pytest.mark.parametrize(("terms", "inter"), [(PLAIN, "mean"), (PLAIN, "sum"), (("cov",), "mean"), (("inter",), "sum")])
def test_the_ranking_is_that_of_the_formulas_and_smaller_budgets_are_prefixes(
    terms: tuple[str, ...], inter: Any
) -> None:
    whole = step(terms=terms, inter=inter).rank(table()).rows.tolist()
    assert whole == expected(40, terms, inter)
    for n in (0, 1, 33):
        assert step(terms=terms, inter=inter, n=n, double_greedy=False).rank(table()).rows.tolist() == whole[:n]


def test_diversity_by_share_weighs_by_the_budget_so_that_smaller_ones_are_not_prefixes() -> None:
    for n in (16, 60, ROWS):  # all rows: the paper's own weight
        found = step(n=n, diversity="share", double_greedy=False).rank(table())
        assert found.rows.tolist() == expected(n, share=n / ROWS)
    assert set(expected(16, share=0.1)) - set(expected(60, share=60 / ROWS)[:16])
    assert step(n=1, diversity="share").described.endswith("diversity by share")


def test_row_order_block_size_and_workers_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    straight = step().rank(table())
    order = np.random.default_rng(7).permutation(ROWS)
    for threads, bucket, memory, block in ((1, 1, 0, 1), (3, 5000, 1 << 28, 7)):
        monkeypatch.setattr("tamis.runs.regroup._THREADS", threads)
        monkeypatch.setattr("tamis.runs.regroup._BUCKET", bucket)  # bytes
        monkeypatch.setattr("tamis.core.files.scratch.IN_MEMORY", memory)
        moved = step().rank(table(order, block))
        assert order[moved.rows].tolist() == straight.rows.tolist()
        assert moved.gains.tolist() == straight.gains.tolist()  # to the last bit: classes are put in order of uids
        assert moved.stays.tolist() == straight.stays.tolist()
        assert moved.facts["objective"] == straight.facts["objective"]


def test_an_estimated_floor_changes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    straight = step().rank(table()).rows.tolist()
    asked: list[float] = []
    monkeypatch.setattr(module, "_LARGE", 2)  # rows from which on one in so many is a sample
    real = module._Work._floor
    monkeypatch.setattr(module._Work, "_floor", lambda *some: asked.append(real(*some)) or asked[-1])
    assert step().rank(table()).rows.tolist() == straight
    assert asked[0] == -math.inf < asked[1]  # of the fewest rows, then of more
    monkeypatch.setattr(module._Work, "_floor", lambda self, count: -math.inf if count == math.inf else 2.9)
    assert step().rank(table()).rows.tolist() == straight  # far too high


def test_fractions_are_of_the_candidates_or_of_the_pool() -> None:
    some = table().with_candidates(np.arange(ROWS) < 101)
    found = step(n=None, fraction=0.25, double_greedy=False).select(some)
    assert found.counts["kept"] == 25
    assert not found.keep[101:].any()
    assert step(n=None, fraction=0.25, of="pool", double_greedy=False).select(some).counts["kept"] == 40
    assert step(n=10**6, double_greedy=False).select(table()).counts["kept"] == ROWS


def test_rows_that_have_no_direction_are_missing_and_spoil_no_class() -> None:
    images, texts = columns()["image_embedding"].copy(), columns()["text_embedding"].copy()
    images[3], texts[50, 9], images[70, 2] = 0, np.nan, np.inf
    found = step(missing="drop", double_greedy=False).select(table(image_embedding=images, text_embedding=texts))
    assert found.counts == {"kept": 40, "adds less": ROWS - 43, "missing": 3}
    candidates = np.ones(ROWS, bool)
    candidates[[3, 50, 70]] = False
    assert found.keep.tolist() == step(double_greedy=False).select(table().with_candidates(candidates)).keep.tolist()


def test_numbers_that_are_nearly_alike_are_classes_of_their_own() -> None:
    numbers = np.array([1000001, 1000002, 1000003, 0.1, -0.0, 0.0, 12345678.0, 1e-7], np.float32)
    spread = numbers[np.arange(ROWS) % 8]
    found = step(per="number").rank(table(block=3, number=spread))
    sizes = {line["class"]: line["pairs"] for line in found.facts["classes"]}
    assert sizes == dict.fromkeys(["1000001", "1000002", "1000003", "0.1", "12345678", "0.0000001"], 20) | {"0": 40}


def test_a_pool_of_nothing_or_of_one_pair() -> None:
    nothing = step(missing="drop").select(table().with_candidates(np.zeros(ROWS, bool)))
    assert nothing.counts == {"kept": 0, "adds less": 0, "missing": 0}
    assert nothing.facts == {}
    lost = {name: np.full((ROWS, 16), np.nan, np.float16) for name in ("image_embedding", "text_embedding")}
    assert step(missing="drop").select(table(**lost)).counts == {"kept": 0, "adds less": 0, "missing": ROWS}
    single = np.arange(ROWS) == 8
    assert step(double_greedy=False).select(table().with_candidates(single)).keep.tolist() == single.tolist()


def test_the_facts_say_what_became_of_each_class_and_of_the_covariance() -> None:
    found = step().select(table())
    facts = run_steps(table(), [step()]).funnel[0]["facts"]
    words = np.array(columns()["kind"])
    for line in facts["classes"]:
        assert line["pairs"] == int((words == line["class"]).sum())
        assert line["kept"] == int(found.keep[words == line["class"]].sum())
    assert [line["pairs"] for line in facts["classes"]] == sorted(
        (line["pairs"] for line in facts["classes"]), reverse=True
    )
    assert facts["classes_covered"] == len(set(words[found.keep]))
    held = columns()
    whole, part = (
        np.cov(held["image_embedding"][rows].T.astype(float), held["text_embedding"][rows].T.astype(float), bias=True)
        for rows in (slice(None), found.keep)
    )
    whole, part = whole[:16, 16:], part[:16, 16:]
    assert facts["covariance_error"] == pytest.approx(formulas.covariance_error(whole, part), abs=1e-4)
    assert facts["covariance_error_up_to_scale"] == pytest.approx(
        formulas.covariance_error(whole, part, up_to_scale=True), abs=1e-4
    )

    def centre(side: str, rows: Array) -> Array:
        return np.asarray(held[side][rows].astype(float).mean(0))

    moved = [
        sum(
            np.linalg.norm(centre(side, found.keep & (words == word)) - centre(side, words == word))
            for side in ("image_embedding", "text_embedding")
        )
        for word in set(words[found.keep])
    ]
    assert facts["class_centre_error"] == pytest.approx(np.mean(moved), abs=1e-4)
    assert facts["objective"] >= facts["objective_greedy"]
    assert math.isfinite(facts["objective"])


def test_the_covariance_of_a_large_pool_is_estimated_from_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = step().rank(table())
    monkeypatch.setattr("tamis.recipes.steps.clipcov._SAMPLE", len(table()) // 2)
    sampled = step().rank(table())
    np.testing.assert_array_equal(sampled.rows, exact.rows)
    assert sampled.facts["covariance_error"] != exact.facts["covariance_error"]
    assert sampled.facts["covariance_error"] == pytest.approx(exact.facts["covariance_error"], abs=0.15)


def named(vectors: Array, texts: Array | None = None, names: tuple[str, ...] = KINDS) -> Table:
    """The table with its kinds as zero-shot classes whose names have the embeddings `vectors`."""
    held = columns()
    side_files = {("zero_shot_class", CLASS_NAMES): list(names), ("zero_shot_class", CLASS_VECTORS): vectors}
    return table(
        zero_shot_class=held["kind"],
        text_embedding=held["text_embedding"] if texts is None else texts,
        side_files=side_files,
    )


def test_class_names_and_their_embeddings_are_read_from_the_run() -> None:
    held = columns()
    kinds = np.array(held["kind"])
    vectors = unit_rows(np.random.default_rng(3).normal(size=(CLASSES, 16)) + 1)
    found = ClipCov(n=ROWS, double_greedy=False).rank(named(vectors))
    images, texts = (unit_rows(held[f"{side}_embedding"]).astype(np.float64) for side in ("image", "text"))
    near = np.array([texts[row] @ vectors[KINDS.index(kind)] for row, kind in enumerate(kinds)])
    cross = [2 * images[kinds == kind].mean(0) @ texts[kinds == kind].mean(0) for kind in kinds]
    alpha = found.facts["alpha"]
    assert alpha == pytest.approx(np.mean(cross) / near.mean(), rel=1e-5)
    # The gains of all rows add up to the objective of all: what "label" adds is each caption's own, less its n-th part.
    plain = ClipCov(n=ROWS, double_greedy=False, terms=PLAIN).rank(named(vectors))
    sizes = np.array([np.count_nonzero(kinds == kind) for kind in kinds])
    assert found.gains.sum() - plain.gains.sum() == pytest.approx(alpha * (near * (1 - 1 / sizes)).sum(), rel=1e-5)


def test_embeddings_of_names_that_are_missing_or_do_not_fit_are_errors() -> None:
    vectors = unit_rows(np.ones((CLASSES, 16), np.float32))
    with pytest.raises(RecipeError, match="set alpha yourself"):
        ClipCov(n=3).select(named(-vectors))
    with pytest.raises(RecipeError, match=r"has no embeddings of the class names of 'zero_shot_class'.*leave the term"):
        ClipCov(n=3).select(table(zero_shot_class=columns()["kind"]))
    with pytest.raises(RecipeError, match=r"text_embedding \(16\) and the class names \(9\)"):
        ClipCov(n=3).select(named(vectors[:, :9]))

    def made_by(names: dict[str, str], texts: dict[str, str]) -> Table:
        table: Any = named(vectors)
        table.about = lambda column: {"models": names if column == "zero_shot_class" else texts}
        return table

    asked = made_by({"one/clip": "1111"}, {"other": "2222"})
    with pytest.raises(
        RecipeError, match="one/clip embedded the class names of 'zero_shot_class', other the captions of"
    ):
        ClipCov(n=3).select(asked)
    assert ClipCov(n=3, terms=PLAIN).select(asked).counts["missing"] == 0  # any model's classes will do
    asked = made_by({"a path": "1111"}, {"other": "1111"})
    assert ClipCov(n=3, double_greedy=False).select(asked).counts["kept"] == 3  # one model under two paths


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, "fraction or n"),
        ({"n": 1, "fraction": 0.5}, "fraction or n"),
        ({"fraction": 1.5}, r"got 1\.5"),
        ({"n": -1}, "-1"),
        ({"n": 1, "terms": ("covv",)}, "cov, label, class_reg, inter.* got 'covv'"),
        ({"n": 1, "terms": ("cov", "self")}, "got cov, self"),
        ({"n": 1, "terms": ()}, "got none"),
        ({"n": 1, "per": "kind"}, "per: kind"),
        ({"n": 1, "alpha": math.nan}, "alpha is a number, got nan"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], names: str) -> None:
    ClipCov(n=1, per="birds.zero_shot_class")
    with pytest.raises(ValueError, match=names):
        ClipCov(**settings)


@pytest.mark.parametrize(
    ("settings", "changed", "names"),
    [
        ({"image": "kind"}, {}, "'kind' holds words"),
        ({"per": "image_embedding"}, {}, "'image_embedding' holds vectors"),
        ({}, {"text_embedding": np.ones((ROWS, 9), np.float16)}, r"image_embedding \(16\) and text_embedding \(9\)"),
    ],
)
def test_wrong_columns_are_refused(settings: dict[str, Any], changed: dict[str, Any], names: str) -> None:
    with pytest.raises(RecipeError, match=names):
        step(**settings).select(table(**changed))


def test_classes_that_mostly_hold_one_pair_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [f"class {row // 2}" for row in range(ROWS)]  # two pairs each
    step().select(table(kind=pairs))
    assert not caplog.records
    single = [f"class {max(row - 79, 0)}" for row in range(ROWS)]  # 80 pairs in one class, then one each
    step().select(table(kind=single))
    assert "clipcov, classes of kind: half of the 81 that have pairs hold a single one" in caplog.text
