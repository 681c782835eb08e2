"""Networks in ONNX files, on OpenVINO where it is installed, else on ONNX Runtime."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, ModelRef
from tamis.errors import ModelError, require
from tamis.models.device import fast_bf16
from tamis.models.loading import loaded_once, one_sentence
from tamis.models.reference import resolve

#: An entry of a tensor's `external_data` with the key "location", as protobuf writes it.
_EXTERNAL = re.compile(rb"\x6a[\x00-\xff]{1,2}\n\x08location\x12")

Network = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@loaded_once(keep=4)
def load_network(model: ModelRef, device: Device) -> Network:
    """Loads an .onnx file: a function from one float32 array, of any size that it takes, to its first output.

    OpenVINO runs it on CPUs, in bf16 where the device and the CPU have that; without OpenVINO, and on GPUs with CUDA in
    ONNX Runtime, ONNX Runtime runs it in float32. `network_arithmetic` says which.
    """
    path = resolve(model).path
    if _EXTERNAL.search(path.read_bytes()):
        raise ModelError(f"{path} has weights in other files: save it in one (onnx.save without external data)")
    on_gpu = device.kind.startswith("cuda") and _has_cuda()
    with one_sentence("the ONNX network", path):
        return _on_openvino(path, device) if _has_openvino() and not on_gpu else _on_onnxruntime(path, device, on_gpu)


def _on_openvino(path: Path, device: Device) -> Network:
    import openvino

    config: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if device.precision == "bf16" and fast_bf16() else "f32",
        "PERFORMANCE_HINT": "LATENCY",
        # It would bind the calling thread to the first core, in each of several workers to the same one.
        "ENABLE_CPU_PINNING": False,
    }
    if device.threads:
        config["INFERENCE_NUM_THREADS"] = device.threads
    compiled = openvino.Core().compile_model(path, "CPU", config)
    # Not reshaped: a network is compiled again for every size, but one of dynamic shapes is not.
    return lambda batch: np.array(compiled(batch)[0])


def _on_onnxruntime(path: Path, device: Device, on_gpu: bool) -> Network:
    require("onnxruntime", extra="text")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = device.threads or 0
    providers: list[Any] = ["CPUExecutionProvider"]
    if on_gpu:
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": int(device.kind.partition(":")[2] or 0)}))
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    entry = session.get_inputs()[0].name
    return lambda batch: np.asarray(session.run(None, {entry: batch})[0])


def network_arithmetic(device: Device) -> str:
    """Returns the arithmetic of `load_network` on a device, for fingerprints.

    In float32 OpenVINO and ONNX Runtime find the same quadrilaterals to the last bit (96 images of 96), so they share a
    word. OpenVINO's bf16 finds others in 30 of the 96; ONNX Runtime has no bf16 and always computes in float32.
    """
    if device.kind.startswith("cuda") and _has_cuda():
        return "float32 on cuda"
    return "bf16" if _has_openvino() and device.precision == "bf16" and fast_bf16() else "float32"


def _has_openvino() -> bool:
    return importlib.util.find_spec("openvino") is not None


def _has_cuda() -> bool:
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()
