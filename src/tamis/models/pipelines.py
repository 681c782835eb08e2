"""Pipelines of diffusers: every component of a folder is looked at before it is loaded.

diffusers loads components of transformers without saying that a folder's own code is not to be run, and draws weights
that are missing at random. So those are loaded here, by the loaders of all other checkpoints, and its own are compared
with their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.errors import ModelError
from tamis.models.bounds import check_counts, check_size
from tamis.models.folder import check_part, components_in, object_in, weights_of
from tamis.models.loading import check_tokens, from_settings, load_component, load_tokenizer_in, load_whole

#: Components that judge or prepare photographs: nothing that draws from a text needs them.
_UNNEEDED = ("safety_checker", "feature_extractor", "image_encoder")

#: Pixels of a picture's side, or places of its code's, that a component may be made for.
_LARGEST = 1024

#: What attention was called before diffusers 0.12, and is now; diffusers renames it while loading.
_RENAMED = ((".query.", ".to_q."), (".key.", ".to_k."), (".value.", ".to_v."), (".proj_attn.", ".to_out.0."))


def load_pipeline(cls: Any, folder: Path, model: str, dtype: Any) -> Any:
    """Returns a pipeline.

    Args:
        cls: of diffusers.
        folder: where it lies.
        model: what the user called it, for messages.
        dtype: of its networks.

    Raises:
        ModelError: a component is damaged, not there, or not of diffusers or transformers.
    """
    check_part(folder)
    given: dict[str, Any] = dict.fromkeys(_UNNEEDED[:1])
    for name, (library, kind, part) in components_in(folder).items():
        if name in _UNNEEDED:
            given[name] = None
        elif library == "transformers":
            given[name] = _of_transformers(kind, part, f"{model}: its {name}", dtype)
        elif library == "diffusers":
            _check(kind, part)
        else:
            raise ModelError(
                f"{folder / 'model_index.json'} takes its {name} from {library!r}: only components of diffusers and of "
                "transformers are loaded, never a folder's own code"
            )
    for name, tokenizer in given.items():
        if (
            name.startswith("tokenizer")
            and (reader := given.get(name.replace("tokenizer", "text_encoder"))) is not None
        ):
            _check_reading(tokenizer, reader, folder / name)
    return load_component(cls, folder, "pipeline", dtype=dtype, requires_safety_checker=False, **given)


def _check_reading(tokenizer: Any, reader: Any, part: Path) -> None:
    """Looks whether a tokenizer fits the network that reads its tokens, as a pipeline has it: padded to the longest.

    Raises:
        ModelError: it does not.
    """
    check_tokens(tokenizer, reader, part)
    file = part / "tokenizer_config.json"
    if tokenizer.pad_token_id is None:
        raise ModelError(f"{file} names no token that texts are filled up with (pad_token)")
    positions = getattr(reader.config, "max_position_embeddings", None)
    longest = positions if isinstance(positions, int) else 1 << 16
    if tokenizer.model_max_length > longest:
        raise ModelError(
            f"{file} fills texts up to {tokenizer.model_max_length:,} tokens (model_max_length), and the network "
            f"beside it reads {longest:,} at most"
        )


def _of_transformers(kind: str, part: Path, model: str, dtype: Any) -> Any:
    import transformers

    cls = getattr(transformers, kind, None)
    if "Tokenizer" in kind and cls is not None:
        return load_tokenizer_in(part, cls=cls)
    if not (isinstance(cls, type) and (issubclass(cls, transformers.PreTrainedModel) or kind.startswith("AutoModel"))):
        raise ModelError(f"{model} is a {kind} of transformers, which is neither a tokenizer nor a network")
    return load_whole(cls, part, model, expected=f"a {kind}", dtype=dtype)


def _check(kind: str, part: Path) -> None:
    """Looks at a component of diffusers: that its configuration and its weights belong together, and none is missing.

    Raises:
        ModelError: they do not, or one is.
    """
    import diffusers

    check_part(part)
    cls = getattr(diffusers, kind, None)
    if not (isinstance(cls, type) and issubclass(cls, diffusers.ConfigMixin)):
        raise ModelError(f"{part}: diffusers {diffusers.__version__} has no component {kind!r}")
    if not issubclass(cls, diffusers.ModelMixin):
        return  # a scheduler: numbers alone
    file, shapes = part / "config.json", weights_of(part)
    config = object_in(file)
    check_counts(file, config, shapes)
    sizes = config.get("sample_size")
    for size in sizes if isinstance(sizes, list) else [sizes] if sizes is not None else []:
        if type(size) is not int or not 1 <= size <= _LARGEST:
            raise ModelError(f"{file} is made for images of sample_size = {size!r}: no network draws these")
    outlines: list[Any] = []

    def outline() -> Any:
        outlines.append(from_settings(cls, config))
        return outlines[0]

    check_size(file, outline, shapes)
    if outlines:
        _check_names(part, {_renamed(name): shape for name, shape in shapes.items()}, outlines[0].state_dict())


def _check_names(part: Path, stored: Mapping[str, tuple[int, ...]], asked: Mapping[str, Any]) -> None:
    """diffusers draws weights that are missing at random, and says so in its log alone."""
    missing = sorted(set(asked) - set(stored))
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(f"{part} has no weights for {missing[0]}{more}, which its config.json asks for")


def _renamed(name: str) -> str:
    for old, new in _RENAMED:
        name = name.replace(old, new)
    return name
