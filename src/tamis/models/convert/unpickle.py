"""Pickled checkpoints become safetensors: in a process of its own, once, and as tensors or not at all.

A pickle can hold any call. `torch.load(weights_only=True)` rebuilds tensors and plain containers of them and refuses
everything else; no other way of opening a pickle is in this package. The process ends with the one file, so that
nothing of what was read stays in the one that asked.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.errors import ModelError, require
from tamis.processes import die_with
from tamis.storage import disk_errors

#: Under which name a training's checkpoint keeps the weights, beside its optimiser's state and its step.
_STATES = ("state_dict", "model", "model_state_dict")


#: How often the tensors of a state dict may be larger than its file: T5 names its embeddings four times.
_MOST_NAMES = 4


class _Refused(Exception):
    """A file that is no plain checkpoint, with the reason for a person."""


def to_safetensors(source: Path, target: Path) -> None:
    """Writes the tensors of a pickled checkpoint, by their names, into a safetensors file.

    Args:
        source: a state dict, or a training's checkpoint that holds one; made by `torch.save`.
        target: the file to write. Nothing of it stays where that fails.

    Raises:
        ModelError: it is no such file, or it holds something that would have to be run.
        DependencyError: torch is missing.
        OSError: it cannot be written.
    """
    require("torch", "safetensors", extra="clip")
    done = subprocess.run(
        [sys.executable, "-m", "tamis.models.convert.unpickle", str(source), str(target)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    target.unlink(missing_ok=True)
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"failed: {last[0]}"
        raise ModelError(f"{source}: the process that read it {how}. Is there enough memory?") from None
    if "errno" in told:
        raise OSError(told["errno"], told["reason"], str(target))
    raise ModelError(f"{source} {told['reason']}")


def _write(source: Path, target: Path) -> None:
    """What the process does."""
    import torch
    from safetensors.torch import save_file

    zipped = zipfile.is_zipfile(source)
    if zipped:
        with zipfile.ZipFile(source) as archive:
            size, unpacked = source.stat().st_size, sum(one.file_size for one in archive.infolist())
            if unpacked > size:
                raise _Refused(f"is {size:,} bytes and unpacks to {unpacked:,}: torch.save compresses nothing. Refused")
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                raise _Refused(
                    "is a TorchScript archive, which holds code: save the state dict of its model with torch.save, "
                    "or take the model's safetensors from the hub"
                )
    try:
        found = torch.load(source, map_location="cpu", weights_only=True, mmap=zipped or None)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        if name is None:
            raise _Refused("holds more than tensors, or is damaged: refused") from error
        raise _Refused(f"holds {name[1]}, which only a pickle that may run code could open: refused") from error
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a stream of bytes that is no pickle fails in any way
        raise _Refused(f"is no checkpoint of torch.save, or is damaged ({_first_line(error)})") from error
    tensors = _tensors(found)
    size, needed = source.stat().st_size, sum(one.numel() * one.element_size() for one in tensors.values())
    if needed > _MOST_NAMES * size:
        raise _Refused(f"is {size:,} bytes and its tensors would be {needed:,}: no plain state dict. Refused")
    # A copy of each: tied weights share their memory, and safetensors refuses that.
    plain = {name: one.detach().clone(memory_format=torch.contiguous_format) for name, one in tensors.items()}
    with disk_errors():
        save_file(plain, target, metadata={"format": "pt"})


def _tensors(found: Any) -> dict[str, Any]:
    """Returns the state dict of what a file holds."""
    import torch

    for name in _STATES:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
            break
    tensors = (
        {name: one for name, one in found.items() if isinstance(name, str) and isinstance(one, torch.Tensor)}
        if isinstance(found, Mapping)
        else {}
    )
    if not tensors:
        raise _Refused(f"holds no state dict, but a {type(found).__name__} without tensors by name")
    return tensors


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _main() -> int:
    die_with(os.getppid())  # what it writes goes into a folder that nobody would clear away
    source, target = (Path(argument) for argument in sys.argv[1:])
    try:
        _write(source, target)
    except _Refused as error:
        told: dict[str, Any] = {"reason": str(error)}
    except OSError as error:
        told = {"reason": error.strerror or str(error), "errno": error.errno}
    except MemoryError:
        told = {"reason": "does not fit the memory of this machine"}
    else:
        return 0
    sys.stdout.write(json.dumps(told) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(_main())
