"""The state of a training in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from tamis.errors import RunError, StopError
from tamis.storage import writing

if TYPE_CHECKING:
    import torch

_FACTS, _DIGEST = "tamis.training", "tamis.digest"
_MODEL, _OPTIMISER = "model.", "optimiser."


def save_checkpoint(
    path: Path, model: torch.nn.Module, optimisers: Sequence[torch.optim.Optimizer], facts: Mapping[str, Any]
) -> None:
    """Writes trained weights, the optimiser's state and facts (the step). Replaces the previous file once complete.

    Random generators have no state to keep: each step seeds them.
    """
    import torch
    from safetensors.torch import save_file

    check_finite(model, int(facts.get("step", 0)))
    tensors = {f"{_MODEL}{name}": one for name, one in _trained(model).items()}
    for start, optimiser in _numbered(optimisers):
        for number, state in optimiser.state_dict()["state"].items():
            tensors |= {f"{_OPTIMISER}{start + number}.{name}": torch.as_tensor(one) for name, one in state.items()}
    # safetensors refuses tensors that share memory.
    plain = {name: one.detach().contiguous().cpu().clone() for name, one in tensors.items()}
    text = json.dumps(dict(facts))
    with writing(path, durable=True) as temporary:
        save_file(plain, temporary, metadata={_FACTS: text, _DIGEST: _digest(text, plain)})


def check_finite(model: torch.nn.Module, step: int) -> None:
    """Raises StopError if a trained weight is not finite. Such a model is not saved."""
    import torch

    for name, one in _trained(model).items():
        if one.is_floating_point() and not torch.isfinite(one).all():
            raise StopError(
                f"{name} is not finite after step {step}, so it is not saved; the last checkpoint stays. Lower the "
                "learning rate"
            )


def load_checkpoint(
    path: Path, model: torch.nn.Module, optimisers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any] | None:
    """Loads a checkpoint into a model and its optimisers and returns its facts; None if there is no file."""
    import torch
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    device = next(model.parameters()).device
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts: dict[str, Any] = json.loads(metadata[_FACTS])
        if metadata.get(_DIGEST) != _digest(metadata[_FACTS], tensors):
            raise ValueError("its content does not match its hash")
        with torch.no_grad():
            for name, one in _trained(model).items():
                one.copy_(tensors[f"{_MODEL}{name}"])
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, one in tensors.items():
            if name.startswith(_OPTIMISER):
                number, _, what = name.removeprefix(_OPTIMISER).partition(".")
                state.setdefault(int(number), {})[what] = one if what == "step" else one.to(device)
        for start, optimiser in _numbered(optimisers):
            groups = optimiser.state_dict()["param_groups"]
            count = sum(len(group["params"]) for group in groups)
            own = {number - start: one for number, one in state.items() if start <= number < start + count}
            optimiser.load_state_dict({"state": own, "param_groups": groups})
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error}): delete it to start again") from error
    return facts


def _numbered(optimisers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[int, torch.optim.Optimizer]]:
    """Yields each optimiser with the number of its first parameter, counted over all of them."""
    start = 0
    for optimiser in optimisers:
        yield start, optimiser
        start += sum(len(group["params"]) for group in optimiser.param_groups)


def _digest(facts: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """The xxh3-128 of a checkpoint's content; 0.1 s for a gigabyte."""
    import torch

    total = xxhash.xxh3_128(facts.encode())
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What training changes: parameters with `requires_grad`, and all buffers."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    return {name: one for name, one in model.state_dict().items() if name not in frozen}
