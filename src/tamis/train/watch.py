"""Runs after each step of a training: held-out loss, metrics, each epoch's model, checkpoints."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from tamis.core.errors import RunError, StopError, first_line
from tamis.core.files.storage import explain_errors, writing
from tamis.train.batches import Batches
from tamis.train.loop import autocast
from tamis.train.step import Prepared, TrainingContext, TrainingStep, peak_rate, preparation
from tamis.train.towers import Towers

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: Files: the last checkpoint, and the one with the lowest held-out loss.
CHECKPOINT, BEST = "checkpoint.safetensors", "best.safetensors"

_FACTS, _DIGEST = "tamis.training", "tamis.digest"
_MODEL, _OPTIMISER = "model.", "optimiser."

_CHECKS = 50  # measure the held-out loss so often in a training
_RISING = 0.1  # warn if the held-out loss has not improved for this share of the training


class HeldOut:
    """Measures the loss of the held-out pairs and remembers the step where it was lowest."""

    def __init__(self, context: TrainingContext, towers: Towers, facts: Mapping[str, Any]) -> None:
        """Reads the pairs. `facts` come from the checkpoint that the training resumes from."""
        assert context.held is not None
        self._context = context
        self._towers = towers
        batches = Batches(
            run=context.run, rows=context.held,
            batch=min(context.held.epoch_size, context.training.batch), side=towers.side, smallest=1.0,
            resample=towers.steps.resample, threads=context.how.threads, cache=0,
        )  # fmt: skip
        self._batch: Prepared
        (self._batch,) = batches(0, 1, preparation(context, towers, None))
        if not self._batch.usable.any():
            raise StopError(f"none of the {len(self._batch.usable)} held-out images can be read")
        self._every = max(1, context.training.steps // _CHECKS)
        self._warned = False
        #: saved in the checkpoint: the last loss (None before the first), the lowest one with its step, and the
        #: training loss at that step
        self.facts: dict[str, Any] = {
            "best": math.inf,
            "best_step": 0,
            "best_training": math.inf,
            "held_out_loss": None,
        }
        self.facts |= {name: facts[name] for name in self.facts if name in facts}

    def is_due(self, step: int) -> bool:
        """Whether to measure the loss after a step, counted from 1."""
        return step % self._every == 0 or step == self._context.training.steps

    def check(self, step: int, training_loss: float) -> bool:
        """Measures the loss and returns whether it is the lowest so far. Warns once if the model overfits."""
        training, best = self._context.training, self.facts
        loss = self.loss()
        best["held_out_loss"] = loss
        if loss < best["best"]:
            best.update(best=loss, best_step=step, best_training=training_loss)
            return True
        late = step - best["best_step"] >= _RISING * training.steps
        if late and training_loss < best["best_training"] and not self._warned:
            self._warned = True
            hint = f"; train for {best['best_step'] * training.batch:,} samples, or use --keep-best"
            log.warning(
                "the model overfits: since step %d the training loss fell to %.3f and the held-out loss rose to %.3f%s",
                best["best_step"], training_loss, loss, "" if training.keep_best else hint,
            )  # fmt: skip
        return False

    def loss(self) -> float:
        """The loss of the held-out pairs as one batch."""
        import torch

        towers = self._towers
        cast = partial(autocast, self._context.how.device.precision, towers.device.type)
        towers.model.eval()
        with torch.no_grad():
            value = towers.loss(self._batch.pieces, self._batch.usable.to(towers.device), cast)
        towers.model.train()
        return float(value)


class Watch:
    """Logs, saves and measures after each step of a training."""

    def __init__(
        self, context: TrainingContext, towers: Towers, optimiser: torch.optim.Optimizer, step: TrainingStep,
        facts: Mapping[str, Any], flops: float, held: HeldOut | None,
    ) -> None:  # fmt: skip
        """`facts` come from the checkpoint that the training resumes from; `flops` are operations per pair."""
        self._context = context
        self._towers = towers
        self._optimiser = optimiser
        self._step = step
        self._held = held
        self._share = flops / (peak_rate(towers.device, context.how.device.precision) * context.processes.count)
        self._first = self.saved = int(facts["step"])
        self._unreadable = int(facts.get("unreadable", 0))  # over all processes
        self._start = time.monotonic() - float(facts.get("seconds", 0.0))  # backdated by earlier calls
        self._losses: list[float] = []  # since the last report
        self._since_check: list[float] = []
        # (time, step) of the last report, and from where the speed in the result is measured.
        self._reported = self._steady = (time.monotonic(), self._first)
        steps = context.training.steps
        self._report_every = context.how.report_every or max(1, min(100, steps // 100))
        self._save_every = context.how.save_every or max(50, min(1000, steps // 20))
        self._metrics = context.state / "metrics.jsonl"
        if context.processes.first and self._metrics.is_file():
            self._forget_later_lines()

    def __call__(self, step: int, loss: float) -> None:
        """Does what is due after a step, counted from 1."""
        context, training, model = self._context, self._context.training, self._towers.model
        self._losses.append(loss)
        self._since_check.append(loss)
        if step == self._first + 1:  # the first step waits for the first images
            self._steady = (time.monotonic(), step)
        self._towers.after_step()
        last = step == training.steps
        if self._held is not None and self._held.is_due(step):
            lowest = self._held.check(step, sum(self._since_check) / len(self._since_check))
            self._since_check.clear()
            if lowest and training.keep_best:
                save_checkpoint(context.state / BEST, model, self._optimiser, {"step": step})
        if step % self._report_every == 0 or last:
            self._report(step)
        epoch = step * training.batch // context.rows.epoch_size
        ended = epoch > (step - 1) * training.batch // context.rows.epoch_size
        if ended and context.how.keep_epochs and context.processes.first:
            check_finite(model, step)
            self._towers.save(context.folder / f"epoch-{epoch}")
        if step % self._save_every == 0 or last:
            self._count_unreadable()
            if context.processes.first:
                facts = {
                    "step": step, "pieces": context.how.pieces, "unreadable": self._unreadable,
                    "seconds": time.monotonic() - self._start, **(self._held.facts if self._held else {}),
                }  # fmt: skip
                save_checkpoint(context.state / CHECKPOINT, model, self._optimiser, facts)
            self.saved = step

    def result(self) -> dict[str, Any]:
        """The result of the training, for `training.json`."""
        self._count_unreadable()
        training = self._context.training
        return {
            "steps": training.steps,
            "samples": training.steps * training.batch,
            "pairs": int(self._context.rows.rows.size),
            "unreadable": self._unreadable,
            "seconds": time.monotonic() - self._start,
            **self._speed(self._steady, training.steps),
        }

    def _speed(self, since: tuple[float, int], step: int) -> dict[str, float]:
        """Samples per second since a time and step, and the MFU in [0, 1]."""
        seconds = max(1e-9, time.monotonic() - since[0])
        speed = (step - since[1]) * self._context.training.batch / seconds
        return {"samples_per_second": speed, "utilisation": speed * self._share}

    def _report(self, step: int) -> None:
        training, processes = self._context.training, self._context.processes
        steps = step - self._reported[1]
        total = processes.total(math.fsum(self._losses))
        self._count_unreadable()
        speed = self._speed(self._reported, step)
        self._losses, self._reported = [], (time.monotonic(), step)
        if not processes.first:
            return
        scale = self._towers.scale
        line = {
            "step": step,
            "samples": step * training.batch,
            "epoch": step * training.batch / self._context.rows.epoch_size,
            "loss": total / processes.count / steps,
            "learning_rate": self._optimiser.param_groups[0]["lr"],
            **({} if scale is None else {"scale": scale}),
            "unreadable": self._unreadable,
            **speed,
        }
        held = "" if scale is None else f", scale {scale:.1f}"
        if self._held is not None and (loss := self._held.facts["held_out_loss"]) is not None:
            line["held_out_loss"] = loss
            held = f", held-out loss {loss:.3f}{held}"
        with explain_errors(self._metrics), open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        log.info(
            "step %d of %d: mean loss of the last %d steps %.3f%s, %.0f samples/s, MFU %.1f %%",
            step, training.steps, steps, line["loss"], held, speed["samples_per_second"], 100 * speed["utilisation"],
        )  # fmt: skip

    def _count_unreadable(self) -> None:
        self._unreadable += round(self._context.processes.total(self._step.unreadable))
        self._step.unreadable = 0

    def _forget_later_lines(self) -> None:
        """Drops metrics of the steps that will be repeated, and a line that a kill cut short."""
        lines = []
        for line in self._metrics.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= self._first:
                    lines.append(line + "\n")
            except ValueError:
                break
        with writing(self._metrics) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")


def save_checkpoint(
    path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, facts: Mapping[str, Any]
) -> None:
    """Writes trained weights, the optimiser's state and facts (the step). Replaces the previous file once complete.

    Random generators have no state to keep: each step seeds them.
    """
    import torch
    from safetensors.torch import save_file

    check_finite(model, int(facts.get("step", 0)))
    tensors = {f"{_MODEL}{name}": one for name, one in _state(model).items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"{_OPTIMISER}{number}.{name}": torch.as_tensor(one) for name, one in state.items()}
    # safetensors refuses tensors that share memory.
    plain = {name: one.detach().contiguous().cpu().clone() for name, one in tensors.items()}
    text = json.dumps(dict(facts))
    with writing(path, durable=True) as temporary:
        save_file(plain, temporary, metadata={_FACTS: text, _DIGEST: _digest(text, plain)})


def check_finite(model: torch.nn.Module, step: int) -> None:
    """Raises StopError if a trained weight is not finite. Such a model is not saved."""
    import torch

    for name, one in _state(model).items():
        if one.is_floating_point() and not torch.isfinite(one).all():
            raise StopError(f"{name} is not finite after step {step}: lower the learning rate. The checkpoint stays")


def load_checkpoint(path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Loads a checkpoint into a model and its optimiser and returns its facts; None if there is no file."""
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
            for name, one in _state(model).items():
                one.copy_(tensors[f"{_MODEL}{name}"])
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, one in tensors.items():
            if name.startswith(_OPTIMISER):
                number, _, what = name.removeprefix(_OPTIMISER).partition(".")
                state.setdefault(int(number), {})[what] = one if what == "step" else one.to(device)
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} is damaged ({first_line(error)}): delete it to start again") from error
    return facts


def _digest(facts: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns the xxh3-128 of a checkpoint's content. 0.1 s per gigabyte."""
    import torch

    total = xxhash.xxh3_128(facts.encode())
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that training changes: parameters with `requires_grad`, and all buffers."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    return {name: one for name, one in model.state_dict().items() if name not in frozen}
