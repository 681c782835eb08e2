"""Networks in ONNX files, on OpenVINO where it is installed, else on ONNX Runtime."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device
from tamis.errors import DependencyError, ModelError, needs_extra
from tamis.models.device import fast_bf16
from tamis.models.loading import loaded_once

log = logging.getLogger(__name__)

#: An entry of a tensor's `external_data` with the key "location", as protobuf writes it.
_ELSEWHERE = re.compile(rb"\x6a[\x00-\xff]{1,2}\n\x08location\x12")

Network = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@loaded_once(keep=4)
def load_network(path: Path, digest: str, device: Device) -> Network:
    """Returns a function of one float32 array to the first output, for input of any size that the network takes.

    Args:
        path: the .onnx file.
        digest: of the file: changed weights are loaded anew.
        device: on CPUs OpenVINO runs it, in bf16 where that is the device's precision and the CPU multiplies it; where
            OpenVINO is not installed, and on GPUs with an ONNX Runtime that has CUDA, ONNX Runtime does, in float32.
            `network_arithmetic` tells which.

    Raises:
        ModelError: it keeps weights in other files, of which its hash would say nothing, or is damaged.
        DependencyError: neither is installed.
    """
    if _ELSEWHERE.search(path.read_bytes()):
        raise ModelError(f"{path} keeps weights in other files: save it in one (onnx.save without external data)")
    try:
        return _loaded(path, device)
    except (DependencyError, MemoryError):
        raise
    except Exception as error:  # of OpenVINO or ONNX Runtime
        log.info("where it happened:", exc_info=error)
        said = " ".join(str(error).split())[:300]
        raise ModelError(f"{path} cannot be loaded as an ONNX network: {type(error).__name__}: {said}") from error


def _loaded(path: Path, device: Device) -> Network:
    on_gpu = device.kind.startswith("cuda") and _has_cuda()
    if not on_gpu:
        try:
            import openvino
        except ImportError:
            pass
        else:
            config: dict[str, Any] = {
                "INFERENCE_PRECISION_HINT": "bf16" if device.precision == "bf16" and fast_bf16() else "f32",
                "PERFORMANCE_HINT": "LATENCY",
                # It would bind the thread that calls it to the first core, in each of several workers to the same one.
                "ENABLE_CPU_PINNING": False,
            }
            if device.threads:
                config["INFERENCE_NUM_THREADS"] = device.threads
            compiled = openvino.Core().compile_model(path, "CPU", config)
            # A reshaped network would be compiled anew for every size; one of dynamic shapes is not.
            return lambda batch: np.array(compiled(batch)[0])
    try:
        import onnxruntime
    except ImportError as error:
        raise needs_extra("onnxruntime", "text") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = device.threads or 0
    providers: list[Any] = ["CPUExecutionProvider"]
    if on_gpu:
        number = int(device.kind.partition(":")[2] or 0)
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": number}))
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    entry = session.get_inputs()[0].name
    return lambda batch: np.asarray(session.run(None, {entry: batch})[0])


def network_arithmetic(device: Device) -> str:
    """Returns what `load_network` computes in on a device, as fingerprints tell it.

    In float32 OpenVINO and ONNX Runtime find the same quadrilaterals to the last bit (96 images of 96), so they are one
    word. OpenVINO's bf16 finds others in 30 of the 96, and ONNX Runtime has no bf16: whatever the device's precision,
    it is float32 there.
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
