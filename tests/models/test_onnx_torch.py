"""Networks of ONNX files in torch: ONNX Runtime's numbers, and one batch for the images of one size."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from factories import images_of_many_shapes
from onnx import TensorProto, helper
from pretended_gpu import on_gpu

from tamis.core.types import Device
from tamis.models.ocr import load_network, load_text_detector
from tamis.models.onnx_torch import load_on_device
from tamis.models.reference import resolve

SHAPES = {"ppocr": [(1, 3, 96, 160), (3, 3, 64, 32)], "ppocr-rec": [(1, 3, 48, 96), (4, 3, 48, 160)]}


@pytest.mark.parametrize("model", SHAPES)
def test_the_text_networks_have_the_numbers_of_onnx_runtime(model: str) -> None:
    path = resolve(model).path
    ours = load_on_device(path, Device())
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert ours is not None
    for shape in SHAPES[model]:
        batch = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        (expected,) = theirs.run(None, {"x": batch})
        np.testing.assert_allclose(ours(batch), expected, rtol=0, atol=1e-4)


def network(path: Path, operator: str, attributes: dict[str, Any], weight: Any, shape: list[int]) -> Path:
    """A network of one operator with one weight."""
    weights = [] if weight is None else [helper.make_tensor("w", TensorProto.FLOAT, weight.shape, weight.ravel())]
    node = helper.make_node(operator, ["x", *(["w"] if weights else [])], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, of) for name, of in (("x", shape), ("y", None))]
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    path.write_bytes(model.SerializeToString())
    return path


def test_operators_have_the_numbers_of_onnx_runtime(tmp_path: Path) -> None:
    draw = np.random.default_rng(1).normal
    same = {"auto_pad": "SAME_UPPER"}
    kinds: list[tuple[str, dict[str, Any], Any]] = [
        ("Conv", {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [2, 1]}, draw(size=(5, 4, 3, 2))),
        ("Conv", {"group": 2, **same, "strides": [2, 2]}, draw(size=(6, 2, 4, 3))),
        ("ConvTranspose", {"strides": [2, 2], "group": 2}, draw(size=(4, 3, 2, 2))),
        ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2], **same}, None),
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, None),
        ("AveragePool", {"kernel_shape": [3, 2], "strides": [3, 1]}, None),
        ("HardSigmoid", {"alpha": 0.3}, None),
        ("ReduceMean", {"axes": [-1, 1], "keepdims": 0}, None),
        ("Transpose", {"perm": [0, 2, 3, 1]}, None),
        ("Softmax", {"axis": 3}, None),
        ("Unsqueeze", {"axes": [4, 0]}, None),
    ]
    batch = draw(size=(2, 4, 9, 7)).astype(np.float32)
    for number, (operator, attributes, weight) in enumerate(kinds):
        path = network(tmp_path / f"{number}.onnx", operator, attributes, weight, list(batch.shape))
        ours = load_on_device(path, Device())
        theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        assert ours is not None, operator
        np.testing.assert_allclose(ours(batch), theirs.run(None, {"x": batch})[0], rtol=0, atol=1e-5, err_msg=operator)


def test_a_network_with_another_operator_stays_on_the_cpu(tmp_path: Path, caplog: Any) -> None:
    path = network(tmp_path / "odd.onnx", "Selu", {}, None, [2, 3])
    rows = np.array([[-1, 0, 1], [2, 3, 4]], np.float32)
    with on_gpu() as watch:
        found = load_network(str(path), Device(kind="cuda"))(rows)
        assert watch.calls == 0
    np.testing.assert_allclose(found, load_network(str(path), Device())(rows), atol=1e-6)
    assert len(caplog.messages) == 1
    assert "odd.onnx has the operator Selu with {}, unknown here: the network stays on the CPU" in caplog.messages[0]
    odd = {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}
    assert load_on_device(network(tmp_path / "lower.onnx", "MaxPool", odd, None, [1, 1, 4, 4]), Device()) is None


def test_a_gpu_gets_the_images_of_one_size_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from tamis.models import ocr

    sizes: list[tuple[int, ...]] = []
    real = ocr.load_network

    def counting(model: str, device: Device, one_by_one: bool = False) -> Any:
        network = real(model, device, one_by_one)
        return lambda batch: sizes.append(batch.shape) or network(batch)

    images = [*images_of_many_shapes(), *images_of_many_shapes()]
    how: dict[str, Any] = {"side": 96, "threshold": 0.1, "tallest": 0.3, "legible": None}
    alone = load_text_detector("ppocr", **how, device=Device(threads=1))(images)
    monkeypatch.setattr(ocr, "load_network", counting)
    with on_gpu():
        together = load_text_detector("ppocr", **how, device=Device(kind="cuda", threads=1))(images)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.quads, other.quads, atol=1e-2)
        np.testing.assert_allclose(one.confidence, other.confidence, atol=1e-4)
    assert min(count for count, *_ in sizes) >= 2
    assert len(sizes) < len(images)


def test_searches_that_end_at_different_times_keep_their_places() -> None:
    from tamis.models.ocr import Regions, answer_together

    def search(times: int) -> Any:
        total = 0.0
        for turn in range(times):
            total += float((yield np.full((32, 32 * (1 + turn % 2), 3), times, np.uint8)).mean())
        return Regions(np.zeros((times, 4, 2), np.float32), np.full(times, total, np.float32)), None

    asked = []

    def respond(images: Any) -> Any:
        asked.append(len(images))
        return np.stack([image.mean(axis=2, dtype=np.float32) for image in images])

    times = [3, 0, 1, 3, 2]
    with ThreadPoolExecutor(2) as pool:
        found = answer_together([search(one) for one in times], respond, pool)
    assert [len(regions) for regions, _ in found] == times
    assert [regions.confidence[0] if len(regions) else 0 for regions, _ in found] == [one * one for one in times]
    assert asked == [4, 3, 2]
