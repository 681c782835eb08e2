"""Nodes: what their classes may say, their order, their identities, and how they are executed."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tamis.core.compute import Precision
from tamis.core.errors import ModelError, RecipeError, SignalError
from tamis.core.types import Column, Device, FileRef, Node, Sample, Samples, Signal, settings
from tamis.signals import ComplexityAction
from tamis.signals.features.embeddings import ImageEmbedding, Tokens
from tamis.signals.features.text_boxes import RecognisedText, TextBoxes
from tamis.signals.graph import Executor, Identities, NodeFault, check_output, execute, topological


@dataclass(frozen=True, kw_only=True)
class Lengths(Node):
    """How long captions are; counts its loads and its batches."""

    name: ClassVar[str] = "lengths"
    LOADS: ClassVar[list[str]] = []
    BATCHES: ClassVar[list[int]] = []
    unit: int = 1

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        self.LOADS.append(self.name)

        def lengths(*, samples: Sequence[Sample]) -> np.ndarray:
            self.BATCHES.append(len(samples))
            return np.array([len(sample.caption or "") // self.unit for sample in samples], np.float32)

        return lengths


@dataclass(frozen=True, kw_only=True)
class Times(Signal):
    """Multiplies lengths; fails where one is as long as `poison`."""

    name: ClassVar[str] = "times"
    version: ClassVar[int] = 3
    columns: ClassVar[tuple[Column, ...]] = (Column(name="times", unit="", better="neither"),)
    lengths: Lengths = Lengths()
    factor: float = 2.0
    poison: int = -1

    def needs(self) -> Mapping[str, Node]:
        return {"lengths": self.lengths}

    def load(self, device: Device) -> Callable[..., Any]:
        def times(*, lengths: np.ndarray) -> dict[str, np.ndarray]:
            if (lengths == self.poison).any():
                raise ZeroDivisionError("poison")
            return {"times": lengths * self.factor}

        return times


def loading(load: Callable[[], Any]) -> Times:
    """A signal whose `load` does this."""

    @dataclass(frozen=True, kw_only=True)
    class Loaded(Times):
        def load(self, device: Device) -> Callable[..., Any]:
            return load()  # type: ignore[no-any-return]

    return Loaded()


def samples(*captions: str) -> list[Sample]:
    return [Sample(uid=(0, row), key=str(row), caption=caption) for row, caption in enumerate(captions)]


def computed(nodes: Sequence[Node], *captions: str) -> tuple[dict[Node, Any], dict[Node, NodeFault]]:
    """The values of a batch, and the nodes that failed."""
    values, faults = dict[Node, Any]({Samples(): samples(*captions)}), dict[Node, NodeFault]()
    Executor(Device()).compute(topological(nodes, values), values, faults)
    return values, faults


def test_every_node_stands_after_what_it_needs_and_once() -> None:
    double, triple = Times(), Times(factor=3)
    assert topological([double, triple, Lengths()]) == [Samples(), Lengths(), double, triple]
    assert topological([double], given=[Lengths()]) == [double]
    assert topological([double], given=[double]) == []


def test_equal_nodes_are_loaded_once_and_computed_once_per_batch() -> None:
    Lengths.LOADS.clear()
    Lengths.BATCHES.clear()
    executor = Executor(Device())
    for batch in (samples("a"), samples("abc", "de")):
        values = executor.run([Times(), Times(factor=3), Lengths(unit=1)], {Samples(): batch})
    assert (Lengths.LOADS, Lengths.BATCHES) == (["lengths"], [1, 2])
    assert values[Lengths()].tolist() == [3, 2]
    assert values[Times()]["times"].tolist() == [6, 4]


def test_a_node_that_fails_costs_only_what_needs_it_and_is_not_tried_again() -> None:
    good, bad = Times(), Times(poison=2)
    values, faults = computed([bad, good], "ab")
    assert values[good]["times"].tolist() == [4]
    assert faults == {bad: values[bad]}
    assert str(values[bad]) == "times: ZeroDivisionError: poison"
    assert "test_graph.py" in values[bad].trace
    later: dict[Node, Any] = {Samples(): samples("abc")}
    Executor(Device()).compute(topological([bad], later), later, faults)
    assert later[bad] is faults[bad]


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("at_load", [False, True])
def test_a_signal_that_ends_the_process_has_failed(error: BaseException, at_load: bool) -> None:
    def leave(**_: Any) -> Any:
        raise error

    leaves = loading(leave if at_load else lambda: lambda *, lengths: leave())
    _, faults = computed([leaves, Times()], "a")
    assert list(faults) == [leaves]
    assert type(error).__name__ in str(faults[leaves])


def test_a_model_that_is_not_there_is_no_fault_of_the_signal() -> None:
    def lacking() -> Any:
        raise ModelError("fetch it")

    with pytest.raises(ModelError, match="fetch it"):
        computed([loading(lacking)], "a")


def test_an_empty_batch_finds_a_faulty_signal_before_any_work_and_is_tried_once() -> None:
    given: dict[Node, Any] = {Samples(): []}

    def tried(node: Node, executor: Executor) -> None:
        executor.try_empty(topological([node], given), given)

    Lengths.BATCHES.clear()
    once = Executor(Device())
    for _ in range(3):
        tried(Times(), once)
    assert Lengths.BATCHES == [0]
    with pytest.raises(SignalError, match="'tmies'"):
        tried(loading(lambda: lambda *, lengths: {"tmies": lengths}), Executor(Device()))
    with pytest.raises(SignalError, match=r"lengths.* takes length"):
        tried(loading(lambda: lambda *, length: {"times": length}), Executor(Device()))
    # One that cannot do an empty batch is no faulty one.
    tried(loading(lambda: lambda *, lengths: {"times": np.stack(list(lengths))}), Executor(Device()))


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ([1.0], "list"),
        ({}, "'times' nothing"),
        ({"times": [1.0], "time": [1.0]}, "'time' 'times'"),
        ({"times": [1.0, 2.0]}, "2 1 'times'"),
        ({"times": ["one"]}, "numbers <U3"),
        ({"times": [1 + 2j]}, "numbers complex128"),
        ({"times": np.ma.array([1.0], mask=[True])}, "masked"),
        ({"times": [[1.0, 2.0]]}, "(1, 2)"),
        ({"times": [1.0], "reason": [3]}, "'reason' strings 3"),
        ({"times": [1.0], "reason": []}, "0 'reason'"),
        ({"times": [1.0], "reason": "x"}, "str 'reason'"),  # not one letter for each sample
    ],
    ids=str,
)
def test_a_broken_promise_is_reported_with_the_signals_name(found: Any, names: str) -> None:
    with pytest.raises(SignalError) as error:
        check_output(Times(), found, 1)
    assert [word for word in f"'times' {__name__}.Times {names}".split() if word not in str(error.value)] == []


def test_a_column_of_words_holds_words() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Words(Times):
        columns: ClassVar[tuple[Column, ...]] = (Column(name="word", unit="", better="neither", kind="word"),)

    check_output(Words(), {"word": ["a", None]}, 2)
    for wrong in (["a", 3], "ab"):
        with pytest.raises(SignalError, match="'word'"):
            check_output(Words(), {"word": wrong}, 2)
    with pytest.raises(ValueError, match=r"'\\ud83d'"):
        check_output(Words(), {"word": ["a", "\ud83d"]}, 2)


@pytest.mark.parametrize(
    "values",
    [[1e300], [2**53 + 1], np.array([0, 2**24 + 1]), np.array([2**64 - 1], np.uint64)],
    ids=str,
)
def test_a_number_that_float32_cannot_hold_is_an_error(values: Any) -> None:
    with pytest.raises(ValueError, match="'times'"):
        check_output(Times(), {"times": values}, len(values))
    for fine in (
        [0.1, 1e-300, -3.4e38, np.nan, np.inf],
        [True, False],
        [2**24, -(2**60), 3],
        np.array([200], np.uint8),
    ):
        check_output(Times(), {"times": fine}, len(fine))


@dataclass(frozen=True, kw_only=True)
class Stored(Node):
    """A feature whose value is `VALUES[0]`."""

    VALUES: ClassVar[list[Any]] = []
    name: ClassVar[str] = "stored"
    stored_as: ClassVar[str] = "embeddings"

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, samples: self.VALUES[0]


@dataclass(frozen=True, kw_only=True)
class StoredTexts(Stored):
    stored_as: ClassVar[str] = "texts"


@pytest.mark.parametrize(
    ("node", "value"),
    [
        (Stored(), [["a"]]),
        (Stored(), np.ones((1, 4), np.int64)),
        (Stored(), np.ones((2, 4))),
        (Stored(), np.ma.ones((1, 4))),
        (Stored(), np.full((1, 4), 1e5)),  # float16 ends before that
        (StoredTexts(), ["a"]),
        (StoredTexts(), []),
        (StoredTexts(), [[3]]),
        (StoredTexts(), [["\ud800"]]),
    ],
    ids=repr,
)
def test_a_feature_that_does_not_fit_its_part_is_an_error(node: Stored, value: Any) -> None:
    Stored.VALUES[:] = [value]
    with pytest.raises((SignalError, ValueError)):
        execute([node], samples("ab"), Device())


def test_the_rows_of_a_feature_have_one_width_in_all_batches() -> None:
    executor = Executor(Device())
    for value in (np.empty((0, 0)), np.full((2, 4), np.nan)):
        Stored.VALUES[:] = [value]
        executor.run([Stored()], {Samples(): samples("a", "b")[: len(value)]})
    Stored.VALUES[:] = [np.ones((2, 5))]
    with pytest.raises(SignalError, match=r"4 to 5"):
        executor.run([Stored()], {Samples(): samples("a", "b")})


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"hots": True}, "'hots' 'host'"),
        ({"host": "yes"}, "host bool 'yes'"),
        ({"version": "1"}, "version int '1'"),
        ({"columns": []}, "columns tuple"),
        ({"stored_as": "embedding"}, "'embedding' 'embeddings'"),
        ({"scale": 2.0}, "scale annotation"),
        ({"LIMIT": 3, "_cache": 4, "half": property(lambda self: 1)}, ""),
    ],
)
def test_a_misspelt_class_attribute_is_an_error(body: dict[str, Any], names: str) -> None:
    if not names:
        assert type("Fine", (Signal,), body).host is False  # type: ignore[attr-defined]
        return
    with pytest.raises(TypeError) as error:
        type("Odd", (Signal,), body)
    assert [word for word in names.split() if word not in str(error.value)] == []


def test_identities_tell_nodes_apart_by_settings_versions_and_needs() -> None:
    identities = Identities(Device(threads=2))
    known = {identities.fingerprint(node) for node in (Times(), Times(factor=3), Times(lengths=Lengths(unit=2)))}
    assert len(known) == 3
    assert identities.facts(Times()) == {
        "name": "times",
        "version": 3,
        "models": {},
        "settings": {"factor": 2.0, "poison": -1},  # of lengths what counts stands in needs
        "needs": {"lengths": identities.fingerprint(Lengths())},
    }
    assert settings(Times()) == {"lengths": {"unit": 1}, "factor": 2.0, "poison": -1}
    assert identities.stem(Times()) == f"times-{identities.fingerprint(Times())}"
    moved = identities.on(replace(identities.device, threads=1))
    assert moved.facts(Times()) is identities.facts(Times())  # found once
    for other in (Device(precision="bf16"), Device(kind="cuda:1")):
        with pytest.raises(ValueError, match="float32 on cpu"):
            identities.on(other)


def test_a_file_and_a_parser_count_by_their_contents(spacy_model: str, tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Reads(Times):
        path: FileRef

    def fingerprint(node: Node) -> str:
        return Identities(Device()).fingerprint(node)

    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).write_text(text)
    a, b, c = (fingerprint(Reads(path=str(tmp_path / name))) for name in "abc")
    assert a == b != c
    with pytest.raises(RecipeError, match="nowhere"):
        fingerprint(Reads(path=str(tmp_path / "nowhere")))
    copy = shutil.copytree(spacy_model, tmp_path / "copy")
    one, two = (fingerprint(ComplexityAction(parser=str(path))) for path in (spacy_model, copy))
    assert one == two
    (copy / "vocab" / "more").write_text("changed")
    assert fingerprint(ComplexityAction(parser=str(copy))) != one
    with pytest.raises(ModelError, match="no_such_pipeline"):
        fingerprint(ComplexityAction(parser="no_such_pipeline"))


def test_what_a_gpu_computes_has_another_fingerprint_and_a_cpus_keeps_its_own(clip_model: str) -> None:
    def facts(kind: str, precision: Precision) -> dict[str, Any]:
        return Identities(Device(kind=kind, precision=precision)).facts(ImageEmbedding(model=clip_model))

    assert facts("cpu", "bf16")["precision"] == "bf16"
    assert facts("cpu", "float32")["precision"] == "float32"
    assert facts("cuda", "bf16")["precision"] == "bf16 on cuda"
    assert facts("cuda:1", "bf16") == facts("cuda", "bf16")  # one kind, whichever of them
    tokens = Identities(Device(kind="cuda")).facts(Tokens(model=clip_model))
    assert tokens == Identities(Device()).facts(Tokens(model=clip_model))  # what runs beside the model does not change


def test_the_runtime_of_the_text_networks_counts_where_it_changes_results(monkeypatch: pytest.MonkeyPatch) -> None:
    from tamis.models import ocr

    def stems(precision: Precision, *, openvino: bool, fast: bool = True, cuda: bool = False) -> tuple[str, str]:
        monkeypatch.setattr(ocr, "_has_openvino", lambda: openvino)
        monkeypatch.setattr(ocr, "fast_bf16", lambda: fast)
        identities = Identities(Device(kind="cuda" if cuda else "cpu", precision=precision))
        return identities.fingerprint(TextBoxes()), identities.fingerprint(RecognisedText())

    plain = stems("float32", openvino=True)
    assert stems("float32", openvino=False) == plain  # both runtimes give the same numbers
    assert stems("bf16", openvino=False) == plain  # ONNX Runtime has no bf16
    assert stems("bf16", openvino=True, fast=False) == plain  # nor has this CPU
    in_bf16, on_gpu = stems("bf16", openvino=True), stems("bf16", openvino=True, cuda=True)
    assert len({*plain, *in_bf16, *on_gpu}) == 6
