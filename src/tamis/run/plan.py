"""What a run must hold, and what of it is missing for each shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tamis.data import KEEPS, Device, Node, Scorer, model_refs, settings
from tamis.errors import RecipeError, unknown
from tamis.features.sources import Captions, DecodedImages
from tamis.graph import Identities, model_digest, topological
from tamis.pool import Pool, Shard
from tamis.pool.source import IMAGE_EXTENSIONS
from tamis.run.carried import CarriedField
from tamis.storage import files
from tamis.store.side_files import keeps_side_files, side_files_are_whole
from tamis.version import VERSION


@dataclass(frozen=True)
class Output:
    """One kind of part that every shard gets: the index, a scorer's columns, or a stored feature.

    Attributes:
        kind: "index", "scores", or one of `KEEPS`.
        folder: where its parts lie, relative to the run folder.
        node: who makes it; None for the index.
        label: what recipes call a scorer; "" else.
    """

    kind: str
    folder: str
    node: Node | None = None
    label: str = ""

    @property
    def ending(self) -> str:
        return ".npy" if self.kind == "embeddings" else ".parquet"

    def path(self, run: Path, shard: str) -> Path:
        """Returns the part of a shard."""
        return run / self.folder / f"{shard}{self.ending}"


@dataclass(frozen=True)
class Task:
    """One shard and the parts that it lacks."""

    shard: Shard
    outputs: tuple[Output, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a run shall hold.

    Attributes:
        pool: the samples.
        scorers: with the labels that recipes use.
        keep: which kinds of features to store, of `KEEPS`.
        identities: what tells nodes from others, on the device where networks run.
        fields: of the pool's json fields those that stand in the run's index; the others are added beside it, as
            scores are. None: all.
    """

    pool: Pool
    scorers: tuple[tuple[str, Scorer], ...]
    keep: tuple[str, ...] = ()
    identities: Identities = field(default_factory=lambda: Identities(Device()))
    fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for label, scorer in self.scorers:
            for name in {label, *(column.name for column in scorer.columns)} & {one.field for one in self.carried}:
                raise RecipeError(
                    f"the field {name!r} cannot be added to the run: a column of the scorer {scorer.name} is called so"
                )
        for kind in self.keep:
            if kind not in KEEPS:
                raise RecipeError(unknown("thing to keep", kind, KEEPS))
        if not self.pool.has_images:
            for _, scorer in self.scorers:
                if DecodedImages() in topological([scorer]):
                    raise RecipeError(
                        f"{scorer.name} looks at images, and {self.pool.spec.paths[0]} is metadata without any: "
                        "take its precomputed scores, or name the tars as the pool"
                    )

    @property
    def in_index(self) -> tuple[str, ...]:
        """The json fields that the index holds."""
        return self.pool.spec.fields if self.fields is None else self.fields

    @property
    def carried(self) -> tuple[CarriedField, ...]:
        """The json fields that are added beside it."""
        return tuple(CarriedField(field=name) for name in self.pool.spec.fields if name not in self.in_index)

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The parts that every shard gets, the index first."""
        found = [Output("index", "index")]
        given: tuple[tuple[str, Scorer], ...] = tuple((scorer.name, scorer) for scorer in self.pool.scorers)
        given += tuple((scorer.field, scorer) for scorer in self.carried)
        for label, scorer in given + self.scorers:
            output = Output("scores", f"scores/{self.identities.stem(scorer)}", scorer, label)
            if output.folder not in [other.folder for other in found]:
                found.append(output)
        wanted: list[Node] = [scorer for _, scorer in self.scorers]
        features = [node for node in topological(wanted) if node.stored_as in self.keep]
        for node in (*self.pool.features, *features):
            found.append(self._stored(node))
        return tuple(found)

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """What some sample of each shard must have, "image" and "caption": what is looked at, or was named."""
        spec = self.pool.spec
        nodes = topological([output.node for output in self.outputs if output.node is not None])
        images = spec.image is not None or spec.image_extensions != IMAGE_EXTENSIONS or DecodedImages() in nodes
        found = ("image",) if self.pool.has_images and images else ()
        return (*found, "caption") if spec.caption is not None or Captions() in nodes else found

    @property
    def device(self) -> Device:
        """Where networks run."""
        return self.identities.device

    @cached_property
    def storable(self) -> Mapping[Node, Output]:
        """Where each storable node of the plan lies, if an earlier run has kept it."""
        nodes = topological([output.node for output in self.outputs if output.node is not None])
        return {node: self._stored(node) for node in nodes if node.stored_as}

    def _stored(self, node: Node) -> Output:
        assert node.stored_as is not None, "who calls this has looked"
        return Output(node.stored_as, f"{node.stored_as}/{self.identities.stem(node)}", node)

    def tasks(self, run: Path) -> list[Task]:
        """Returns the shards that lack parts, in order: one listing per folder, however many shards there are."""
        present = {output: files(run / output.folder, output.ending) for output in self.outputs}
        for output in self.outputs:  # who does one of their shards makes the side files
            if keeps_side_files(output.node) and not side_files_are_whole(run / output.folder):
                done = [shard.name for shard in self.pool.shards if shard.name in present[output]]
                present[output] -= set(done[:1])
        tasks = []
        for shard in self.pool.shards:
            missing = tuple(output for output in self.outputs if shard.name not in present[output])
            if any(output.kind == "index" for output in missing):
                missing = self.outputs  # parts of rows that are indexed no more are worth nothing
            if missing:
                tasks.append(Task(shard, missing))
        return tasks

    def describe(self, output: Output) -> dict[str, Any]:
        """Returns what `scorer.json` (or `feature.json`) says of a part folder."""
        assert output.node is not None  # the index describes itself
        node = output.node
        facts: dict[str, Any] = {
            "name": node.name,
            "label": output.label,
            "version": node.version,
            "settings": settings(node),
            "identity": self.identities.facts(node),
            "precision": self.device.precision,
            "tamis": VERSION,
        }
        nodes = topological([node])
        facts["models"] = {
            reference: model_digest(reference) for inner in nodes for reference in model_refs(inner).values()
        }
        if isinstance(node, Scorer):
            facts["columns"] = [asdict(column) for column in node.columns]
        return facts


def labelled(
    scorers: Sequence[tuple[str, Scorer]], taken: Mapping[str, str], identities: Identities
) -> list[tuple[str, Scorer]]:
    """Gives every scorer a label: its own, else its name, else its name and the first of its fingerprint.

    Args:
        scorers: pairs of label ("" for none of its own) and scorer.
        taken: labels of the run so far, to the fingerprint they stand for.
        identities: for the fingerprints.

    Raises:
        RecipeError: a label that was asked for stands for something else already.
    """
    labels = dict(taken)
    by_fingerprint = {stem: label for label, stem in taken.items()}
    found: list[tuple[str, Scorer]] = []
    for asked, scorer in scorers:
        mine = identities.fingerprint(scorer)
        label = asked or by_fingerprint.get(mine) or scorer.name
        if labels.get(label, mine) != mine:
            if asked:
                raise RecipeError(
                    f"the label {label!r} stands for other settings already (fingerprint {labels[label]}); "
                    "choose another label"
                )
            label = f"{scorer.name}_{mine[:4]}"
        labels[label] = mine
        by_fingerprint[mine] = label
        found.append((label, scorer))
    return found
