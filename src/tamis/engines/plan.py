"""What a run must hold, and which parts each shard lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from tamis.core.arrays import Mask
from tamis.core.errors import DamageError, RecipeError, RunError, unknown_message
from tamis.core.files.storage import files, folders
from tamis.core.types import KEEP_WORDS, Column, Device, Node, Sample, Samples, Signal, references, settings
from tamis.core.version import __version__
from tamis.pools import Pool, Shard
from tamis.pools.source import IMAGE_EXTENSIONS
from tamis.runs import Run, manifest
from tamis.runs.manifest import description_of, read_description
from tamis.runs.parts import covered_rows, lacks_side_files, requested_in
from tamis.signals.features.sources import Captions, DecodedImages, Dimensions, HiddenContents, Transparencies
from tamis.signals.file_hash import FileHash
from tamis.signals.graph import Executor, Identities, model_digest, topological

#: A CLIP's embeddings. Importing their classes would slow every command down.
_OF_CLIP = ("image_embedding", "text_embedding")


@dataclass(frozen=True, kw_only=True)
class CarriedField(Signal):
    """A field of the samples' json (or a column of the table), as text, added to a run that has an index already."""

    name: ClassVar[str] = "carried_field"
    host: ClassVar[bool] = True
    field: str

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]  # each field is a column named after it
        about = f"the field {self.field!r} of the samples' json"
        return (Column(name=self.field, unit="", better="neither", kind="word", about=about),)

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def words(*, samples: Sequence[Sample]) -> dict[str, list[str | None]]:
            return {self.field: [sample.given.get(self.field) for sample in samples]}

        return words


@dataclass(frozen=True)
class Output:
    """A part that every shard gets: the index, the columns of a signal, or a stored feature."""

    kind: str  # "index", "scores", or one of `KEEPS`
    folder: str  # where its parts are, relative to the run folder
    node: Node | None = None  # what computes it; None for the index
    label: str = ""  # the signal's name in recipes

    @property
    def ending(self) -> str:
        return ".npy" if self.kind == "embeddings" else ".parquet"

    def path(self, run: Path, shard: str) -> Path:
        """Returns the path of a shard's part."""
        return run / self.folder / f"{shard}{self.ending}"


@dataclass(frozen=True)
class Within:
    """The rows of a run to score, and their name: a subset's."""

    name: str
    rows: Mapping[str, Mask]  # by shard
    given: str = ""  # the file, name or recipe that a user gave; "" for an object


@dataclass(frozen=True)
class Task:
    """One shard and the parts that it lacks."""

    shard: Shard
    outputs: tuple[Output, ...]
    rows: Mask | None = field(default=None, compare=False)  # the shard's rows to score; None: all
    outside: str = ""  # what the other rows are outside of


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a run must hold."""

    pool: Pool
    signals: tuple[tuple[str, Signal], ...]  # each with its label
    keep: tuple[str, ...] = ()  # kinds of features to store, of `KEEP_WORDS`
    kept: frozenset[Node] = frozenset()  # further features to store, see `_embeddings_to_keep`
    about_kept: str = field(default="", compare=False)  # a sentence about them
    grow: bool = False  # a run of another pool may get this pool's shards
    identities: Identities = field(default_factory=lambda: Identities(Device()))
    fields: tuple[str, ...] | None = None  # json fields in the index; the others become parts of their own. None: all
    facts: Mapping[str, Any] | None = field(default=None, compare=False)  # the run's run.json; None: there is none yet
    within: Within | None = field(default=None, compare=False)  # score only these rows, of shards with an index
    again: frozenset[str] = field(default=frozenset(), compare=False)  # shards to read again, although they are indexed
    executor: Executor | None = field(default=None, compare=False)  # with loaded nodes, for a worker in this process

    def __post_init__(self) -> None:
        for label, signal in self.signals:
            for name in {label, *(column.name for column in signal.columns)} & {one.field for one in self.added_fields}:
                raise RecipeError(f"the field {name!r} cannot be added: {signal.name} has a column of that name")
        for kind in self.keep:
            if kind not in KEEP_WORDS:
                raise RecipeError(unknown_message("thing to keep", kind, KEEP_WORDS))
        if not self.pool.has_images:
            for _, signal in self.signals:
                if DecodedImages() in topological([signal]):
                    raise RecipeError(f"{signal.name} needs images, {self.pool.spec.paths[0]} holds none: use tars")

    def for_run(self, run: Path) -> Plan:
        """Returns the plan with the labels and the fields of a run as it is now, which another command may change.

        Raises StopError if the pool does not go with this folder, or a label or a field belongs to something else.
        """
        manifest.check_folder(run, self.pool)
        facts = manifest.read_manifest(run)
        manifest.check_pool(run, facts, self.pool, grow=self.grow)
        indexed, later = manifest.fields_of(run, facts)
        if indexed is not None and (new := set(self.pool.spec.fields) - {*indexed, *later}):
            opened = Run(run, facts=facts)
            for name in sorted(new & {*opened.scores, *opened.columns}):
                raise RunError(f"the field {name!r} cannot be added to {run}: it would hide a score of that name")
        signals = _with_labels(self.signals, manifest.labels_of(run), self.identities)
        kept, about = self._embeddings_to_keep(run)
        return replace(self, signals=tuple(signals), fields=indexed, facts=facts, kept=kept, about_kept=about)

    def _embeddings_to_keep(self, run: Path) -> tuple[frozenset[Node], str]:
        """Returns the embeddings of the CLIP that scores, to store in a run although `keep` does not name them.

        Those of one CLIP, so that `image_embedding` has one meaning; and only those that its signals compute anyway: a
        run that has its scores without its embeddings stays as it is. The second value is a sentence to print.
        """
        stored = {folder.name for folder in folders(run / "embeddings")}
        made: list[tuple[list[Node], list[Node], Signal]] = []  # those that are stored, all, and the signal
        for _, signal in self.signals if self.within is None and not {"none", "embeddings"} & {*self.keep} else ():
            named = [node for node in topological([signal]) if node.name in _OF_CLIP]
            nodes = [node for node in named if [*references(node, "model")] == ["model"]]  # none that are given
            if len({references(node, "model")["model"] for node in nodes}) == 1:  # not several epochs of a training
                there = [node for node in nodes if self.identities.stem(node) in stored]
                made.append((there, nodes, signal))
        if not made:
            return frozenset(), ""
        there, nodes, signal = max(made, key=lambda one: (len(one[0]), len(one[1])))
        scored = description_of(run / "scores" / self.identities.stem(signal)).is_file()
        if scored and not there:
            return frozenset(), "the run has CLIP's scores without its embeddings: --keep embeddings computes them"
        others = not there and any(name.startswith("image_embedding-") for name in stored)
        kept = frozenset(() if others else there if scored else nodes)
        about = "CLIP's embeddings are stored too, 2 to 3 KB a pair, for the map and search by words (--keep none: not)"
        return kept, about if kept else ""

    @property
    def device(self) -> Device:
        """The device on which networks run."""
        return self.identities.device

    def on(self, device: str, threads: int | None) -> Plan:
        """Returns the plan for one worker: its device and its number of threads for the models."""
        kind, same = self.device.kind, threads == self.device.threads
        executor = self.executor if same and device in (kind, f"{kind}:0") else None
        identities = self.identities.on(replace(self.device, kind=device, threads=threads))
        return replace(self, identities=identities, executor=executor)

    def without_shards(self) -> Plan:
        """Returns the plan to send to workers, which get their shards one by one: a pool may have a million."""
        return replace(
            self, pool=replace(self.pool, shards=()), facts=None, within=None, again=frozenset(), executor=None
        )

    @property
    def in_index(self) -> tuple[str, ...]:
        """The json fields that the index holds."""
        return self.pool.spec.fields if self.fields is None else self.fields

    @property
    def added_fields(self) -> tuple[CarriedField, ...]:
        """The json fields that are not in the index, but in parts of their own."""
        return tuple(CarriedField(field=name) for name in self.pool.spec.fields if name not in self.in_index)

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The parts that every shard gets, the index first."""
        outputs = {"index": Output("index", "index")}
        signals: list[tuple[str, Signal]] = [(signal.name, signal) for signal in self.pool.signals]
        signals += [(signal.field, signal) for signal in self.added_fields]
        for label, signal in [*signals, *self.signals]:
            folder = f"scores/{self.identities.stem(signal)}"
            outputs.setdefault(folder, Output("scores", folder, signal, label))
        nodes = topological([signal for _, signal in self.signals])
        features = [node for node in nodes if node.stored_as in self.keep or node in self.kept]
        return (*outputs.values(), *map(self._stored_output, [*self.pool.features, *features]))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the outputs need, in topological order."""
        return tuple(topological([output.node for output in self.outputs if output.node is not None]))

    @property
    def plugins(self) -> list[str]:
        """Names of the nodes that other packages define."""
        return sorted({node.name for node in self.nodes if not type(node).__module__.startswith("tamis.")})

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Returns "image", "size" or "caption": needed because a signal uses it or the user named its column."""
        spec, readers = self.pool.spec, (DecodedImages, HiddenContents, Transparencies, FileHash)
        images = spec.image is not None or spec.image_extensions != IMAGE_EXTENSIONS
        images = images or any(isinstance(node, readers) or node == Dimensions(of="stored") for node in self.nodes)
        sizes, captions = Dimensions() in self.nodes, spec.caption is not None or Captions() in self.nodes
        images, sizes = self.pool.has_images and images, self.pool.has_images and sizes
        wanted = {"image": images, "size": sizes, "caption": captions}
        return tuple(name for name, needed in wanted.items() if needed)

    @cached_property
    def storable(self) -> Mapping[Node, Output]:
        """The nodes whose values may already be stored in the run, with the part that holds them."""
        return {node: self._stored_output(node) for node in self.nodes if node.stored_as}

    def _stored_output(self, node: Node) -> Output:
        assert node.stored_as is not None
        return Output(node.stored_as, f"{node.stored_as}/{self.identities.stem(node)}", node)

    def tasks(self, run: Path) -> list[Task]:
        """Returns the shards that lack parts, in order. Lists each folder once."""
        present = {output: files(run / output.folder, output.ending) for output in self.outputs}
        for output in self.outputs:  # reopen one finished shard, so that its worker rewrites the side files
            if lacks_side_files(run / output.folder, output.node):
                done = [shard.name for shard in self.pool.shards if shard.name in present[output]]
                present[output] -= set(done[:1])
        requested = {signal for _, signal in self.signals}
        outputs = [output for output in self.outputs if self.within is None or output.node in requested]
        some = {output for output in outputs if _covers_some(run / output.folder)}
        tasks = []
        for shard in self.pool.shards:
            rows = None if self.within is None else self.within.rows.get(shard.name)
            if self.within is not None and rows is None:  # it is not indexed
                continue
            missing = tuple(
                output
                for output in outputs
                if shard.name not in present[output] or (output in some and _lacks(output.path(run, shard.name), rows))
            )
            if shard.name in self.again or any(output.kind == "index" for output in missing):
                missing = self.outputs  # parts that belong to a lost index are useless
            if missing:
                tasks.append(Task(shard, missing, rows, self.within.name if self.within else ""))
        return tasks

    def describe(self, output: Output) -> dict[str, Any]:
        """Returns the content of `signal.json` or `feature.json` in the output's folder."""
        node = output.node
        assert node is not None  # the index describes itself
        models = [one for inner in topological([node]) for one in references(inner, "model").values()]
        facts: dict[str, Any] = {
            "name": node.name,
            "label": output.label,
            "version": node.version,
            "settings": settings(node, recorded=True),
            "identity": self.identities.facts(node),
            "precision": self.device.precision,
            "tamis": __version__,
            "models": {reference: model_digest(reference) for reference in models},
        }
        if node.stored_as == "embeddings" and models:
            from tamis.models.clip import temperature_of

            facts["temperature"] = temperature_of(models[0])
        if isinstance(node, Signal):
            facts["columns"] = [asdict(column) for column in node.columns]
            if self.within is not None:
                facts["within"] = True  # parts may cover some rows only
        return facts


def _covers_some(folder: Path) -> bool:
    """Whether parts of a folder may cover some rows of their shards only."""
    path = description_of(folder)
    return folder.parent.name == "scores" and path.is_file() and bool(read_description(path).get("within"))


def _lacks(path: Path, rows: Mask | None) -> bool:
    """Whether a part does not cover some of the rows asked for."""
    try:
        if rows is None or requested_in(path) is None:
            return requested_in(path) is not None
        done = covered_rows(path)
        return done is not None and bool((rows & ~done).any())
    except DamageError:  # the shard's worker will report it
        return True


def _with_labels(
    signals: Sequence[tuple[str, Signal]], known: Mapping[str, str], identities: Identities
) -> list[tuple[str, Signal]]:
    """Gives every signal a label: the requested one unless "", else its name, else name and part of its fingerprint.

    `known`: fingerprints by label in the run. Raises RecipeError if a label belongs to other settings.
    """
    labels = dict(known)
    by_fingerprint = {fingerprint: label for label, fingerprint in known.items()}
    pairs: list[tuple[str, Signal]] = []
    for requested, signal in signals:
        fingerprint = identities.fingerprint(signal)
        label = requested or by_fingerprint.get(fingerprint) or signal.name
        if labels.get(label, fingerprint) != fingerprint:
            if requested:
                raise RecipeError(f"the label {label!r} belongs to other settings ({labels[label]}): choose another")
            label = f"{signal.name}_{fingerprint[:4]}"
        labels[label] = fingerprint
        by_fingerprint[fingerprint] = label
        pairs.append((label, signal))
    return pairs
