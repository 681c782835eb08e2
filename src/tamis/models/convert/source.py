"""Where the checkpoint that is to be converted lies: a file, a folder, or a repository of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.errors import ModelError
from tamis.models.folder import PICKLES, complete, object_in
from tamis.models.hub import with_pickles

#: What open_clip calls its weights in a folder, the safe ones first.
_OPEN_CLIP = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")

_CONFIG = "open_clip_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """What was found.

    Attributes:
        weights: its file of weights; the folder itself where its layout is transformers' own.
        folder: where it lies.
        config: what its open_clip_config.json holds, None where there is none.
    """

    weights: Path
    folder: Path
    config: Mapping[str, Any] | None

    @property
    def is_transformers(self) -> bool:
        """Whether names and configuration are transformers' own: only the pickle is to be replaced."""
        return self.weights == self.folder


def find(source: str, config: Path | None) -> Checkpoint:
    """Finds a checkpoint.

    Args:
        source: a file, a folder, or a Hugging Face id.
        config: open_clip's configuration, where it does not lie beside the weights.

    Raises:
        ModelError: nothing is there, or nothing that needs to be converted, or several files.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return Checkpoint(path, path.parent, _read(config or path.parent / _CONFIG, given=config is not None))
    if path.is_dir():
        folder = path
    elif source.count("/") == 1 and not source.startswith((".", "~", "/")) and not path.suffix:
        folder = with_pickles(source)
    else:
        raise ModelError(f"there is no checkpoint {source}: name a file, a folder, or a Hugging Face id (owner/name)")
    if complete(folder):
        raise ModelError(f"{source} holds safetensors and a config.json already: name it as the model, as it is")
    if (folder / "config.json").is_file() and pickles_of(folder):
        return Checkpoint(folder, folder, None)
    settings = _read(config or folder / _CONFIG, given=config is not None)
    named = [folder / name for name in _OPEN_CLIP if (folder / name).is_file()]
    files = named[:1] or sorted(file for file in folder.iterdir() if file.suffix in (*PICKLES, ".safetensors"))
    if len(files) != 1:
        some = ", ".join(file.name for file in files[:5]) or "none"
        raise ModelError(f"{source} should hold one file of weights; there are {len(files)} ({some}): name the file")
    return Checkpoint(files[0], folder, settings)


def pickles_of(folder: Path) -> list[Path]:
    """Returns the pickled weights of a folder that transformers or diffusers saved, those of its parts included."""
    names = ("pytorch_model*.bin", "diffusion_pytorch_model*.bin")
    return sorted(file for name in names for file in folder.rglob(name))


def _read(path: Path, *, given: bool) -> Mapping[str, Any] | None:
    if not path.is_file() and not given:
        return None
    return object_in(path)
