"""Every kind of network on a pretended GPU: no mixed devices, and the CPU's numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import images_of_many_shapes
from pretended_gpu import on_gpu
from test_contracts import SIGNAL_EXAMPLES
from tiny_captioners import chat_folder
from tiny_encoders import ENCODERS, encoder_folder
from tiny_towers import MATCHERS, TOWERS

from tamis.core.errors import StopError
from tamis.core.types import Device, Node
from tamis.models.device import device_for, halve_batch, memory_ran_out, visible_devices
from tamis.models.nucleus import Sampling
from tamis.signals import SIGNALS
from tamis.signals.graph import execute
from tamis_lab.testing import pairs

# PaliGemma's processor makes an array of a tensor in a way that NumPy will refuse one day.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

SAMPLES = pairs.good_pairs()
GPU = Device(kind="cuda:1", batch_size=4, threads=1)
CPU = Device(batch_size=4, threads=1)

#: Signals whose examples run no network of torch.
WITHOUT_TORCH = {"caption_length", "image_size", "file_hash", "image_hash", "image_quality", "language", "head"}
WITHOUT_TORCH |= {"class_mentions", "complexity_action"}


def on_both(work: Callable[[Device], Any], full: int = 0) -> tuple[Any, Any]:
    """What the GPU makes, which computes all of it, and what the CPU makes; the GPU's memory runs out `full` times."""
    with on_gpu() as watch:
        watch.full = full
        made = work(GPU)
    assert watch.calls > 9
    assert watch.full == 0
    return made, work(CPU)


def value(node: Node) -> Callable[[Device], Any]:
    return lambda device: execute([node], SAMPLES, device)[node]


def assert_same(made: Any, expected: Any) -> None:
    assert made.keys() == expected.keys()
    for name, wanted in expected.items():
        if isinstance(wanted, np.ndarray) and wanted.dtype.kind == "f":
            np.testing.assert_allclose(made[name], wanted, rtol=0, atol=1e-4, err_msg=name)
        else:
            assert list(made[name] or ()) == list(wanted or ()), name


def test_the_pretended_gpu_refuses_what_a_real_one_refuses() -> None:
    with on_gpu():
        here, net = torch.ones(4, 3), torch.nn.Linear(3, 2).to("cuda:1")
        there, rows = here.to("cuda:1"), torch.tensor([0, 2])
        for refused in (
            lambda: net(here),
            lambda: there + torch.ones(3, device="cuda"),
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: here[rows.to("cuda:1")],
            lambda: there.index_select(0, rows),
            lambda: there.__setitem__(rows, here[:2]),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                refused()
        for unreadable in (there, net.weight, net(there)):
            with pytest.raises(TypeError, match=r"Tensor\.cpu"):
                np.asarray(unreadable.detach())
        made = [net(there), net(there)[0], there + torch.tensor(1.0), there[rows], torch.zeros_like(there)]
        made += [there.new_zeros(3), there.double(), torch.arange(3, device=there.device), net.state_dict()["bias"]]
        assert {one.device for one in made} == {torch.device("cuda:1")}
        assert {one.device.type for one in (here, there.cpu(), net(there).to("cpu"), torch.ones(2))} == {"cpu"}
        assert np.asarray(there.cpu()).tolist() == [[1.0] * 3] * 4
    assert not torch.cuda.is_available()


def test_torch_decides_whether_there_is_a_gpu_and_each_gpu_whether_it_has_bf16() -> None:
    assert device_for().kind == "cpu"
    with pytest.raises(StopError, match="'cuda' is not available: torch sees 0 GPUs; use --device cpu"):
        device_for("cuda")
    assert device_for("cuda", away=True) == Device(kind="cuda", precision="bf16", batch_size=256)
    with on_gpu(bf16=(True, True)):
        found = device_for()
        assert found == Device(kind="cuda", precision="bf16", batch_size=256)
        assert visible_devices(found) == ["cuda:0", "cuda:1"]
        assert device_for(networks=False).kind == "cpu"
        with pytest.raises(StopError, match="'cuda:2' is not available: torch sees 2 GPUs"):
            device_for("cuda:2")
    with on_gpu(bf16=(True, False)):  # a T4 next to an A100
        kinds = ("cuda", "cuda:0", "cuda:1")
        assert [device_for(kind).precision for kind in kinds] == ["float32", "bf16", "float32"]
        assert [device_for(kind, away=True).precision for kind in kinds] == ["float32", "bf16", "float32"]
        assert device_for("cuda:1", "bf16").precision == "bf16"  # emulated, for who asks


NETWORKS = [
    (name, n)
    for name, some in SIGNAL_EXAMPLES.items()
    for n, settings in enumerate(some)
    if name not in WITHOUT_TORCH and "served_model" not in settings.values()
]


@pytest.mark.parametrize(("name", "number"), NETWORKS)
def test_a_signal_has_the_scores_of_the_cpu_also_after_its_memory_ran_out(
    name: str, number: int, request: pytest.FixtureRequest
) -> None:
    options = {
        setting: request.getfixturevalue(one) if isinstance(one, str) and one.endswith("_model") else one
        for setting, one in SIGNAL_EXAMPLES[name][number].items()
    }
    assert_same(*on_both(value(SIGNALS[name](**options)), full=1))


def test_memory_that_runs_out_halves_the_batch_once_and_says_so(clip_model: str, caplog: Any) -> None:
    work = value(SIGNALS["clip"](model=clip_model))
    assert_same(*on_both(work, full=1))
    assert caplog.messages == [
        "image_embedding: cuda:1 has no memory for a batch of 4, so we go on with 2",
    ]
    with on_gpu() as watch:
        watch.full = 2
        with pytest.raises(StopError, match="has no memory for a batch of 2: use a --batch-size below 2, or a smaller"):
            work(replace(GPU, batch_size=8))
    one = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    assert memory_ran_out(one)
    assert not memory_ran_out(RuntimeError("a size differs"))
    with pytest.raises(StopError, match="has no memory for a batch of 1: use a smaller model"):
        halve_batch(replace(GPU, batch_size=1), 5, "clip")


@pytest.mark.parametrize("checkpoint", [*TOWERS, *MATCHERS])
def test_towers_have_the_scores_of_the_cpu(checkpoint: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = str({**TOWERS, **MATCHERS}[checkpoint](tmp_path / "tiny"))
    assert_same(*on_both(value(SIGNALS["clip" if checkpoint in TOWERS else "itm"](model=folder))))


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_has_the_vectors_of_the_cpu(kind: str, tmp_path: Path) -> None:
    from tamis.models.texts.sentence import load_sentence_encoder

    folder = str(encoder_folder(tmp_path / "tiny", kind))
    texts = ["a dog", "a dog? a cat: 2", "word " * 400]
    made, wanted = on_both(lambda device: load_sentence_encoder(folder, device, "query: ")(texts))
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["blip-2", "florence2", "idefics3", "kosmos-2", "llava", "qwen3_5"])
def test_a_vision_language_model_says_what_it_says_on_the_cpu(kind: str, tmp_path: Path) -> None:
    from tamis.models.chat import ChatModel

    folder = str(chat_folder(tmp_path / "tiny", kind))
    images, uids = images_of_many_shapes()[:3], np.arange(6, dtype=np.uint64).reshape(-1, 2)

    def words(device: Device) -> Any:
        model = ChatModel(folder, device)
        drawn = model(images, uids, Sampling(captions=2, max_tokens=6, repetition_penalty=1.2))
        return drawn, [answer.text for answer in model.answer(images, ["Is it?", "a", "dog " * 9], 4)]

    made, wanted = on_both(words)
    assert made == wanted
