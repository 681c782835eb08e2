"""Nodes: what their classes may say, their order, their identities, and how they are executed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tamis.data import Column, Device, FileRef, Node, Precision, Sample, Samples, Signal, settings
from tamis.errors import ModelError, RecipeError, SignalError
from tamis.features.embeddings import ImageEmbedding, Tokens
from tamis.features.recognised_text import RecognisedText
from tamis.features.text_boxes import TextBoxes
from tamis.graph import Executor, Fault, Identities, check_columns, execute, topological
from tamis.signals import ComplexityAction


@dataclass(frozen=True, kw_only=True)
class Lengths(Node):
    """How long captions are; counts its loads and its batches."""

    name: ClassVar[str] = "lengths"
    version: ClassVar[int] = 1
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


def samples(*captions: str) -> list[Sample]:
    return [Sample(uid=(0, row), key=str(row), caption=caption) for row, caption in enumerate(captions)]


def test_every_node_stands_after_what_it_needs_and_once() -> None:
    double, triple = Times(), Times(factor=3)
    assert topological([double, triple, Lengths()]) == [Samples(), Lengths(), double, triple]


def test_what_is_given_is_left_out_with_what_only_it_needs() -> None:
    assert topological([Times()], given=[Lengths()]) == [Times()]
    assert topological([Times()], given=[Times()]) == []


def test_executing_gives_the_value_of_every_node() -> None:
    values = execute([Times()], samples("abc", "de"), Device())
    assert values[Lengths()].tolist() == [3, 2]
    assert values[Times()]["times"].tolist() == [6, 4]


def test_equal_nodes_are_loaded_once_and_computed_once_per_batch() -> None:
    Lengths.LOADS.clear()
    Lengths.BATCHES.clear()
    executor = Executor(Device())
    for batch in (samples("a"), samples("a", "b")):
        executor.run([Times(), Times(factor=3), Lengths(unit=1)], {Samples(): batch})
    assert (Lengths.LOADS, Lengths.BATCHES) == (["lengths"], [1, 2])


def test_a_node_that_fails_costs_only_what_needs_it() -> None:
    good, bad, faults = Times(), Times(poison=2), dict[Node, Fault]()
    values: dict[Node, Any] = {Samples(): samples("ab")}
    executor = Executor(Device())
    executor.compute(topological([bad, good], values), values, faults)
    assert values[good]["times"].tolist() == [4]
    assert isinstance(values[bad], Fault)
    assert str(values[bad]) == "times: ZeroDivisionError: poison"
    assert "test_graph.py" in values[bad].trace
    assert faults == {bad: values[bad]}


def test_what_failed_in_one_batch_is_not_tried_in_the_next() -> None:
    bad, faults = Times(poison=2), dict[Node, Fault]()
    executor = Executor(Device())
    for captions in (["ab"], ["abc"]):
        values: dict[Node, Any] = {Samples(): samples(*captions)}
        executor.compute(topological([bad], values), values, faults)
        assert values[bad] is faults[bad]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([1.0], "must return a mapping of its columns, it returned a list"),
        ({}, "declares the column 'times' and does not emit it; it emits nothing"),
        ({"tims": [1.0]}, "declares the column 'times' and does not emit it; it emits 'tims'"),
        ({"times": [1.0], "time": [1.0]}, "unknown column 'time' (did you mean 'times'?)"),
        ({"times": [1.0, 2.0]}, "gave 2 values for 1 samples in the column 'times'"),
        ({"times": 1.0}, "gave a float for 1 samples in the column 'times'"),
        ({"times": ["one"]}, "the column 'times' holds numbers; it gave an array of <U3"),
        ({"times": np.array(["1"])}, "the column 'times' holds numbers; it gave an array of <U1"),
        ({"times": np.array([1.0], object)}, "the column 'times' holds numbers; it gave an array of object"),
        ({"times": [None]}, "the column 'times' holds numbers; it gave an array of object"),
        ({"times": [1 + 2j]}, "the column 'times' holds numbers; it gave an array of complex128"),
        ({"times": np.ma.array([1.0], mask=[True])}, "the column 'times' is a masked array"),
        ({"times": [np.ma.masked]}, "the column 'times' is a masked array or holds masked values"),
        ({"times": [2**70]}, "the column 'times' holds numbers; it gave an array of object"),
        ({"times": [1.0], "reason": [3]}, "'reason' holds words; it gave the int 3"),
        ({"times": [[1.0, 2.0]]}, "the column 'times' must be (n,) numbers; it gave an array of (1, 2)"),
        ({"times": [1.0], "reason": []}, "gave 0 values for 1 samples in 'reason'"),
        ({"times": [1.0], "reason": "x"}, "gave a str for 1 samples in 'reason'"),  # not one letter for each sample
    ],
)
def test_a_broken_promise_is_told_with_the_signals_name(found: Any, reason: str) -> None:
    with pytest.raises(SignalError, match=re.escape(reason)) as error:
        check_columns(Times(), found, 1)
    assert str(error.value).startswith(f"the signal 'times' ({__name__}.Times)")


def test_a_column_of_words_holds_words() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Words(Times):
        columns: ClassVar[tuple[Column, ...]] = (Column(name="word", unit="", better="neither", kind="word"),)

    check_columns(Words(), {"word": ["a", None]}, 2)
    with pytest.raises(SignalError, match="gave a str for 2 samples in the column 'word'"):
        check_columns(Words(), {"word": "ab"}, 2)
    with pytest.raises(SignalError, match="the column 'word' holds words; it gave the int 3"):
        check_columns(Words(), {"word": ["a", 3]}, 2)
    with pytest.raises(
        ValueError, match=r"the column 'word' got '\\ud83d', which is no text: half of a surrogate pair"
    ):
        check_columns(Words(), {"word": ["a", "\ud83d"]}, 2)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1e300], "got 1e+300, and float32, in which it is stored, ends at 3.4e+38"),
        (
            [2**53 + 1],
            "got the whole number 9007199254740993, and float32, in which columns are stored, would make it 9007",
        ),
        (np.array([0, 2**24 + 1]), "got the whole number 16777217"),
        (np.array([2**64 - 1], np.uint64), "got the whole number 18446744073709551615"),
    ],
)
def test_a_number_that_float32_cannot_hold_is_an_error(values: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the column 'times' {reason}")):
        check_columns(Times(), {"times": values}, len(values))


@pytest.mark.parametrize(
    "values",
    [[0.1, 1e-300, -3.4e38, np.nan, np.inf], [True, False], [2**24, -(2**60), 3], [], np.array([1, 200], np.uint8)],
    ids=str,
)
def test_numbers_that_float32_rounds_at_most_are_fine(values: Any) -> None:
    check_columns(Times(), {"times": values}, len(values))


@dataclass(frozen=True, kw_only=True)
class Stored(Node):
    """A feature whose value is `VALUES[0]`."""

    VALUES: ClassVar[list[Any]] = []
    name: ClassVar[str] = "stored"
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = "embeddings"

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, samples: self.VALUES[0]


@dataclass(frozen=True, kw_only=True)
class StoredTexts(Stored):
    stored_as: ClassVar[str] = "texts"


@pytest.mark.parametrize(
    ("node", "value", "reason"),
    [
        (Stored(), [["a"]], "its value holds floats; it gave an array of <U1"),
        (Stored(), np.ones((1, 4), np.int64), "its value holds floats; it gave an array of int64"),
        (Stored(), np.ones((2, 4)), "must give 1 rows of floats; it gave an array of (2, 4)"),
        (Stored(), np.ones(1), "must give 1 rows of floats; it gave an array of (1,)"),
        (Stored(), np.ma.ones((1, 4)), "its value is a masked array"),
        (Stored(), np.full((1, 4), 1e5), "its value got 100000, and float16, in which it is stored, ends at 6.55e+04"),
        (StoredTexts(), ["a"], "must give a list of texts, or None, for each of 1 samples"),
        (StoredTexts(), [], "must give a list of texts, or None, for each of 1 samples"),
        (StoredTexts(), [[3]], "its value holds words; it gave the int 3"),
        (StoredTexts(), [["\ud800"]], "its value got '\\ud800', which is no text"),
    ],
)
def test_a_feature_that_does_not_fit_its_part_is_an_error(node: Stored, value: Any, reason: str) -> None:
    Stored.VALUES[:] = [value]
    with pytest.raises((SignalError, ValueError), match=re.escape(reason)):
        execute([node], samples("ab"), Device())


def test_the_rows_of_a_feature_have_one_width_in_all_batches() -> None:
    executor = Executor(Device())
    for value in (np.empty((0, 0)), np.full((2, 4), np.nan)):
        Stored.VALUES[:] = [value]
        executor.run([Stored()], {Samples(): samples("a", "b")[: len(value)]})
    Stored.VALUES[:] = [np.ones((2, 5))]
    with pytest.raises(SignalError, match="gave rows of 5 numbers, and before that of 4"):
        executor.run([Stored()], {Samples(): samples("a", "b")})


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), SystemExit("stop")], ids=repr)
@pytest.mark.parametrize("loading", [False, True])
def test_a_signal_that_ends_the_process_has_failed(error: BaseException, loading: bool) -> None:
    def leave() -> None:
        raise error

    @dataclass(frozen=True, kw_only=True)
    class Leaves(Times):
        def load(self, device: Device) -> Callable[..., Any]:
            return leave() if loading else lambda *, lengths: leave()  # type: ignore[func-returns-value]

    values: dict[Node, Any] = {Samples(): samples("a")}
    faults: dict[Node, Fault] = {}
    Executor(Device()).compute(topological([Leaves(), Times()], values), values, faults)
    assert list(faults) == [Leaves()]
    assert "times" in str(faults[Leaves()])
    assert type(error).__name__ in str(faults[Leaves()])


def test_arguments_that_needs_does_not_name_are_found_when_loaded() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(Times):
        def load(self, device: Device) -> Callable[..., Any]:
            return lambda *, length: {"times": length}

    with pytest.raises(SignalError, match=r"names lengths, and the function that load\(\) returns takes length"):
        Executor(Device()).load(Other())


def test_a_model_that_is_not_there_is_no_fault_of_the_signal() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Lacking(Times):
        def load(self, device: Device) -> Callable[..., Any]:
            raise ModelError("fetch it")

    values: dict[Node, Any] = {Samples(): samples("a")}
    with pytest.raises(ModelError, match="fetch it"):
        Executor(Device()).compute(topological([Lacking()], values), values, {})


def test_an_empty_batch_finds_a_faulty_signal_before_any_work() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Misspelt(Times):
        def load(self, device: Device) -> Callable[..., Any]:
            return lambda *, lengths: {"tmies": lengths}

    given: dict[Node, Any] = {Samples(): []}
    with pytest.raises(SignalError, match="it emits 'tmies'"):
        Executor(Device()).try_empty(topological([Misspelt()], given), given)


def test_nodes_are_tried_once_however_many_shards_there_are() -> None:
    Lengths.BATCHES.clear()
    executor = Executor(Device())
    given: dict[Node, Any] = {Samples(): []}
    for _ in range(3):
        executor.try_empty(topological([Times()], given), given)
    assert Lengths.BATCHES == [0]


def test_a_signal_that_cannot_do_an_empty_batch_is_no_faulty_one() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Stacks(Times):
        def load(self, device: Device) -> Callable[..., Any]:
            return lambda *, lengths: {"times": np.stack(list(lengths))}

    given: dict[Node, Any] = {Samples(): []}
    Executor(Device()).try_empty(topological([Stacks()], given), given)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"hots": True}, "unknown class attribute 'hots' (did you mean 'host'?)"),
        ({"in_indx": True}, "(did you mean 'in_index'?)"),
        ({"host": "yes"}, "host must be a bool, got 'yes'"),
        ({"version": "1"}, "version must be a int, got '1'"),
        ({"columns": []}, "columns must be a tuple, got []"),
        ({"stored_as": "embedding"}, "unknown kind of stored feature 'embedding' (did you mean 'embeddings'?)"),
        ({"scale": 2.0}, "A setting needs an annotation (scale: float = ...)"),
    ],
)
def test_a_misspelt_class_attribute_is_an_error(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=re.escape(reason)):
        type("Odd", (Signal,), body)


def test_settings_constants_methods_and_private_names_are_fine() -> None:
    class Fine(Signal):
        name: ClassVar[str] = "fine"
        LIMIT = 3
        _cache = 4
        setting: int = 5

        @property
        def half(self) -> float:
            return self.setting / 2

    assert (Fine.host, Fine.in_index, Fine.stored_as) == (False, False, None)


def test_identities_tell_nodes_apart_by_settings_versions_and_needs() -> None:
    identities = Identities(Device())
    known = {identities.fingerprint(node) for node in (Times(), Times(factor=3), Times(lengths=Lengths(unit=2)))}
    assert len(known) == 3
    assert identities.facts(Times()) == {
        "name": "times",
        "version": 3,
        "models": {},
        "settings": {"factor": 2.0, "poison": -1},  # of lengths what counts stands in needs
        "needs": {"lengths": identities.fingerprint(Lengths())},
    }
    assert identities.stem(Times()) == f"times-{identities.fingerprint(Times())}"


def test_a_file_counts_by_its_contents(tmp_path: Any) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Reads(Times):
        path: FileRef

    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).write_text(text)
    a, b, c = (Identities(Device()).fingerprint(Reads(path=str(tmp_path / name))) for name in "abc")
    assert a == b != c
    with pytest.raises(RecipeError, match=r"path: .*nowhere is not there or cannot be read"):
        Identities(Device()).facts(Reads(path=str(tmp_path / "nowhere")))


def test_a_parser_counts_by_its_contents_wherever_it_lies(spacy_model: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(spacy_model, copy)
    one, two = (Identities(Device()).fingerprint(ComplexityAction(parser=str(path))) for path in (spacy_model, copy))
    assert one == two
    (copy / "vocab" / "more").write_text("changed")
    assert Identities(Device()).fingerprint(ComplexityAction(parser=str(copy))) != one
    with pytest.raises(ModelError, match="no_such_pipeline"):
        Identities(Device()).facts(ComplexityAction(parser="no_such_pipeline"))


def test_identities_are_worked_out_once_and_carried_to_a_device_of_other_threads() -> None:
    identities = Identities(Device(threads=2))
    facts = identities.facts(Times())
    moved = identities.on(replace(identities.device, threads=1))
    assert moved.facts(Times()) is facts
    with pytest.raises(ValueError, match="identities in float32 on cpu are others in bf16 on cpu"):
        identities.on(Device(precision="bf16"))
    with pytest.raises(ValueError, match="identities in float32 on cpu are others in float32 on cuda"):
        identities.on(Device(kind="cuda:1"))


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
    pytest.importorskip("rapidocr")
    from tamis.models.ocr import onnx_network

    def stems(precision: Precision, *, openvino: bool, fast: bool = True, cuda: bool = False) -> tuple[str, str]:
        monkeypatch.setattr(onnx_network, "_has_openvino", lambda: openvino)
        monkeypatch.setattr(onnx_network, "fast_bf16", lambda: fast)
        monkeypatch.setattr(onnx_network, "_has_cuda", lambda: cuda)
        identities = Identities(Device(kind="cuda" if cuda else "cpu", precision=precision))
        return identities.fingerprint(TextBoxes()), identities.fingerprint(RecognisedText())

    plain = stems("float32", openvino=True)
    assert stems("float32", openvino=False) == plain  # both runtimes give the same numbers
    assert stems("bf16", openvino=False) == plain  # ONNX Runtime has no bf16
    assert stems("bf16", openvino=True, fast=False) == plain  # nor has this CPU
    in_bf16, on_gpu = stems("bf16", openvino=True), stems("bf16", openvino=True, cuda=True)
    assert len({*plain, *in_bf16, *on_gpu}) == 6


def test_records_in_settings_are_nested() -> None:
    assert settings(Times()) == {"lengths": {"unit": 1}, "factor": 2.0, "poison": -1}
