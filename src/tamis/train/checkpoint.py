"""What a training has reached, in one file that is there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from tamis.errors import RunError, StopError
from tamis.storage import disk_errors, writing

if TYPE_CHECKING:
    import torch

_FACTS, _DIGEST = "tamis.training", "tamis.digest"
_MODEL, _OPTIMISER = "model.", "optimiser."


def save_checkpoint(
    path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, facts: Mapping[str, Any]
) -> None:
    """Writes weights, the optimiser's state and facts (the step) as one safetensors file.

    It replaces the file of before when it is whole. Weights that are not trained are left out: they are those of the
    start. So is the state of random generators: what a step draws is a function of the seed, the step and the process.

    Raises:
        DiskFullError, RunError: it cannot be written; the file of before stays.
        StopError: a weight is not finite; nothing is written.
    """
    import torch
    from safetensors.torch import save_file

    check_finite(model, int(facts.get("step", 0)))
    tensors = {f"{_MODEL}{name}": one for name, one in _trained(model).items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"{_OPTIMISER}{number}.{name}": torch.as_tensor(one) for name, one in state.items()}
    told, plain = json.dumps(dict(facts)), _plain(tensors)
    with writing(path, durable=True) as temporary, disk_errors():
        save_file(plain, temporary, metadata={_FACTS: told, _DIGEST: _digest(told, plain)})


def check_finite(model: torch.nn.Module, step: int) -> None:
    """Makes sure that what training changes is made of numbers, so that no model without sense is kept.

    Raises:
        StopError: a weight is not finite.
    """
    import torch

    for name, one in _trained(model).items():
        if one.is_floating_point() and not torch.isfinite(one).all():
            raise StopError(
                f"{name} is not finite after step {step}, which is not saved; what was saved before stays. Lower the "
                "learning rate"
            )


def load_checkpoint(path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Puts a checkpoint into a model and its optimiser and returns its facts; None where there is no file.

    The rates of the optimiser's groups stay as they are.

    Raises:
        RunError: the file is damaged, or of another model.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    where = next(model.parameters()).device
    try:
        path.open("rb").close()
    except OSError as error:  # it may be whole
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    try:
        with safe_open(path, "pt") as file:
            said = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts: dict[str, Any] = json.loads(said[_FACTS])
        expected = _digest(said[_FACTS], found)  # a bit that flipped would change every later loss unseen
        if said.get(_DIGEST) != expected:
            raise ValueError("it is not what was written")
        weights = {name.removeprefix(_MODEL): one for name, one in found.items() if name.startswith(_MODEL)}
        with torch.no_grad():
            for name, one in _trained(model).items():
                one.copy_(weights[name])
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, one in found.items():
            if name.startswith(_OPTIMISER):
                number, _, what = name.removeprefix(_OPTIMISER).partition(".")
                state.setdefault(int(number), {})[what] = one if what == "step" else one.to(where)
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(
            f"{path} is damaged, or of another model ({type(error).__name__}: {error}): delete it to start anew"
        ) from error
    return facts


def _digest(facts: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns the xxh3-128 of what a checkpoint holds; 0.1 s for a gigabyte."""
    import torch

    total = xxhash.xxh3_128(facts.encode())
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns what training changes: the parameters that want a gradient, and all buffers."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    return {name: one for name, one in model.state_dict().items() if name not in frozen}


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns tensors that safetensors writes: each with memory of its own."""
    return {name: one.detach().contiguous().cpu().clone() for name, one in tensors.items()}
