"""`tamis convert`: checkpoints of other layouts, and pickles, become folders that every signal opens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from tamis.cli.printing import say, stop


def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A checkpoint: a file, a folder, or the Hugging Face id of a repository."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the model; new, or empty.")],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="open_clip_config.json, if not next to the weights.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="A folder, a model, or CLIP's bpe_simple_vocab_16e6.txt.gz, instead of the layout's own."),
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="gelu or quick_gelu, for an open_clip checkpoint without configuration.")
    ] = None,
    head_width: Annotated[
        int | None, typer.Option(min=1, help="Width of an attention head, if the checkpoint does not say it.")
    ] = None,
) -> None:
    """Turn BLIP's own .pth, an open_clip checkpoint, or pickled weights into a folder of safetensors.

    Pickles are read as plain tensors, and nothing else in them is opened. Name OUT wherever a model is asked for.

    Example: tamis convert model_base_14M.pth blip-14m
    """
    from tamis.errors import unknown
    from tamis.models.convert import convert as make
    from tamis.models.layouts import Activation

    if activation is not None and activation not in get_args(Activation):
        stop(unknown("activation", activation, get_args(Activation)))
    chosen: Any = activation
    made = make(source, out, config=config, tokenizer=tokenizer, activation=chosen, head_width=head_width)
    more = f" ({'; '.join(made.notes)})" if made.notes else ""
    say(f"wrote {out}: {made.parameters:,} parameters, from {made.kind}'s layout{more}. Name {out} as the model")
