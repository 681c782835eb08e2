"""Commands that make what others read: `tamis convert` a model's folder, `tamis lab` pools and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

from typer import Argument, Option

from tamis.cli.options import split
from tamis.cli.printing import join_counts, say, stopping_at
from tamis.core.errors import StopError, unknown_message

_SOURCE = Argument(metavar="FILE", help="A checkpoint: a file, a folder, or the Hugging Face id of a repository.")
_TOKENIZER = Option(help="A folder, a model, or CLIP's bpe_simple_vocab_16e6.txt.gz, instead of the layout's own.")


def convert(
    source: Annotated[str, _SOURCE],
    out: Annotated[Path, Argument(metavar="OUT", help="Folder for the model; new, or empty.")],
    config: Annotated[
        Path | None, Option(metavar="FILE", help="open_clip_config.json, if not next to the weights.")
    ] = None,
    tokenizer: Annotated[str | None, _TOKENIZER] = None,
    activation: Annotated[
        str | None, Option(help="gelu or quick_gelu, for an open_clip checkpoint without configuration.")
    ] = None,
    resize_mode: Annotated[
        str | None,
        Option(help="shortest (then cropped) or squash, for an open_clip checkpoint without preprocess_cfg."),
    ] = None,
    head_width: Annotated[
        int | None, Option(min=1, help="Width of an attention head, if the checkpoint does not say it.")
    ] = None,
) -> None:
    """Turn BLIP's own .pth, an open_clip checkpoint, or pickled weights into a folder of safetensors.

    Pickles are read as plain tensors, and nothing else in them is opened. Name OUT wherever a model is asked for.

    Example: tamis convert model_base_14M.pth blip-14m
    """
    from tamis.models.convert import convert as make
    from tamis.models.layouts import Activation, ResizeMode

    chosen: dict[str, Any] = {"activation": activation, "resize_mode": resize_mode}
    for (name, word), words in zip(chosen.items(), (Activation, ResizeMode), strict=True):
        if word is not None and word not in get_args(words):
            raise StopError(unknown_message(name.replace("_", "-"), word, get_args(words)))
    made = make(source, out, config=config, tokenizer=tokenizer, head_width=head_width, **chosen)
    more = f" ({'; '.join(made.notes)})" if made.notes else ""
    say(f"wrote {out}: {made.parameters:,} parameters, from {made.kind}'s layout{more}. Name {out} as the model")


def make_pool(
    out: Annotated[Path, Argument(metavar="OUT", help="Folder for the shards.")],
    pairs: Annotated[int, Option(min=1, help="Number of pairs.")] = 2000,
    seed: Annotated[int, Option(help="The same seed gives the same bytes.")] = 0,
    mix: Annotated[
        str, Option(help="laion: kinds in the shares of LAION; uniform: equal shares; hard: half hard kinds.")
    ] = "laion",
    shares: Annotated[
        str | None, Option(metavar="KIND=SHARE,...", help="Shares of kinds, such as visual=0.5,wrong_colour=0.1.")
    ] = None,
    shard_size: Annotated[int, Option(min=1, help="Pairs per shard.")] = 1000,
    workers: Annotated[int, Option(min=1, help="Number of processes.")] = 1,
) -> None:
    """Draw a pool whose truth is known: scenes with captions, painted text, mismatches, duplicates and broken files.

    Example: tamis lab make-pool demo/pool --pairs 2000 --seed 0
    """
    from tamis_lab.pool import make_pool as make

    own: Any = None if shares is None else {}
    for word in split(shares):
        kind, _, share = (part.strip() for part in word.partition("="))
        try:
            own[kind] = float(share)
        except ValueError:
            raise StopError(f"--shares takes kind=share, such as visual=0.5,text_only=0.5; got {word!r}") from None
    with stopping_at(ValueError):
        summary = make(out, pairs=pairs, seed=seed, mix=mix, shard_size=shard_size, workers=workers, shares=own)  # type: ignore[arg-type]
    kinds = {kind: count for kind, count in summary.kinds.items() if count}
    say(f"wrote {pairs:,} pairs to {out}: {join_counts(kinds)}")


def make_tasks(
    out: Annotated[Path, Argument(metavar="OUT", help="Folder for the tasks' folders.")],
    size: Annotated[int, Option(min=1, help="Images of each task.")] = 480,
    seed: Annotated[int | None, Option(min=0, help="Another seed draws other images.")] = None,
) -> None:
    """Draw five zero-shot tasks in clip-benchmark's layout: objects, colours, places, reading, retrieval.

    Example: tamis lab make-tasks lab-tasks --size 480
    """
    from tamis_lab.tasks import TASKS_SEED
    from tamis_lab.tasks import make_tasks as make

    make(out, size=size, seed=TASKS_SEED if seed is None else seed)
    say(f"wrote 5 tasks of {size:,} images each to {out}")
