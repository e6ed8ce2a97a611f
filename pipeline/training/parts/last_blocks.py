"""Train the last blocks of a network from stored tokens, beginning with the fitted head.

What the blocks below give for an image never changes, so their tokens are computed once, for two
views of each image, and kept beside the features. The blocks above are then trained in the same
loop as any model, at a fraction of its cost. The weights that are kept lie between the initial ones
with the fitted head and the trained ones (`fine_tuning`), decided by the validation images. With
fewer than 50 of them, training images are predicted too, each by a fit without its fold.

Several processes compute features and tokens together, and then each of the fits. The head, and how
far to go from it, are found in the process that has started them.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.splits import folds
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.layers.last_blocks import divisible, whole_model
from patchline.pipeline.models.model_building import build_on_meta
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.probing.features import suitable_batch_size
from patchline.pipeline.models.probing.few_images import FEWEST_VALIDATION, FOLDS_OF_BLOCKS
from patchline.pipeline.models.probing.linear_fit import (
    WITHOUT_CHOICE,
    FittedHead,
    split_into_folds,
)
from patchline.pipeline.terminal_words import counted, duration
from patchline.pipeline.training.checkpoint import FINAL
from patchline.pipeline.training.config import with_changes
from patchline.pipeline.training.job import TOKEN_VIEWS, StoredTokens, TrainingJob
from patchline.pipeline.training.parts import fine_tuning
from patchline.pipeline.training.parts.fine_tuning import head_first
from patchline.pipeline.training.parts.probe import (
    FeatureNetwork,
    build_frozen_network,
    head_of_rows,
)
from patchline.pipeline.training.parts.stored_tokens import (
    TokenFit,
    TokenStore,
    fit_alone,
    fit_of_ranks,
)
from patchline.pipeline.training.processes.machines import Machines
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.record import TrainingRecord
from patchline.pipeline.training.start import HEAD_FOLDER
from patchline.pipeline.training.train_result import FineTuningRecord, RefitResult, TrainResult
from patchline.pipeline.training.training_data import Integers, units_of_rows
from patchline.pipeline.training.validation import quality
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import EVENTS_FILE
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors
from patchline.pipeline.workspace.run_memory import stage_keys

_HEAD_FILE, _WEIGHTS = "fitted_head.safetensors", "weights"
_FOLDS_FOLDER = "held_out"
_TOO_FEW_TO_MEASURE, _MOST_FOR_TOKENS = 16, 0.8
"""Images whose tokens take about as long as measuring that; and the largest part of the time that
is left after the head, beyond which the tokens are not worth computing."""
Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]
Result = TypeVar("Result", bound=FrozenModel)


class RunTogether(Protocol):
    """Lets all processes of a training run do a job together; see `ProcessGroup.run`."""

    def __call__(self, job: TrainingJob, kind: type[Result]) -> Result:
        """Return the result, of a class."""
        ...


@dataclass(frozen=True)
class _Start:
    """Where the training of the last blocks starts: tokens, and a head for them."""

    job: TrainingJob
    frozen: FeatureNetwork
    tokens: StoredTokens
    run: RunTogether | None
    """Function that runs a job in several processes; None trains in this one alone."""

    def fit(
        self,
        events: EventWriter,
        settings: dict[str, Any],
        record: TrainingRecord | None = None,
        **changes: Any,
    ) -> TokenFit:
        """Train from the tokens to the end, with changes of the settings and of the job.

        Args:
            events: the writer of the events in the job's folder.
            settings: the changes of the training settings.
            record: the record to use instead of the config's; None keeps that.
            changes: the changes of the job's fields.
        """
        job = self._job_with(settings, record, **changes)
        if self.run is None:
            return fit_alone(job, events)
        self.frozen.model.cpu()  # the processes need the memory of the GPU
        torch.cuda.empty_cache()
        kind: type[TrainResult | RefitResult] = RefitResult if job.part.refit else TrainResult
        result = self.run(job, kind)
        events.catch_up()
        return fit_of_ranks(job, result, events)

    def _job_with(
        self, settings: dict[str, Any], record: TrainingRecord | None, **changes: Any
    ) -> TrainingJob:
        """Return the job of a fit, with what the frozen network has decided."""
        decided = {
            "precision": self.frozen.precision.name,
            "threads": self.frozen.threads,
            "device": self.frozen.device.type,
            "compile": False,
        }
        config = with_changes(self.job.config, training={**decided, **settings})
        if record:
            config = config.model_copy(update={"record": config.record.of(record)})
        if not self.tokens.blocks:  # no block whose rate could decay
            config = with_changes(config, optimizer={"layer_decay": 1.0})
        return self.job.model_copy(update={"config": config, "tokens": self.tokens, **changes})


def train_last_blocks(
    job: TrainingJob, events: EventWriter, run: RunTogether | None = None
) -> TrainResult:
    """Fit the head, train the last blocks from there, and choose how far to go.

    Args:
        job: the model and the data.
        events: gets notes, metrics and progress.
        run: a function that runs a job in several processes; by default, this one trains alone.

    Raises:
        ConfigError: if the model cannot be divided.
        StorageError: if the disk has no space for the tokens.
    """
    began = time.monotonic()
    tokens = _tokens_of_ranks(job, events, run)
    frozen, fitted = _fit_frozen_head(job, events)
    if enough := fine_tuning.why_enough(job, fitted):
        events.write("note", message=enough)
        return fitted
    if tokens is None:
        left = job.limit_seconds - (time.monotonic() - began)
        if left < math.inf and _token_seconds(job, frozen) > _MOST_FOR_TOKENS * left:
            events.write("note", message=fine_tuning.NO_TIME)
            return fitted
        tokens = _store_tokens(job, frozen, events)
    parts = _parts_to_hold_out(job, frozen)
    left = job.limit_seconds - (time.monotonic() - began)
    start = _Start(job.limited_to(left / max(1, len(parts))), frozen, tokens, run)
    fit = start.fit(events, {})
    logits_SMK = fit.logits_along()
    along, truth = [logits_SMK], [fit.truth]
    c_used = fitted.probe.regularization if fitted.probe else WITHOUT_CHOICE
    if parts:
        held_out = _of_held_out(start, fit, parts, c_used, events)
        along.append(held_out[0])
        truth.append(held_out[1])
    count = sum(len(rows) for rows in parts)
    chosen = fine_tuning.choose_share(
        np.concatenate(along, 1), np.concatenate(truth), held_out=count
    )
    own = {
        "blocks": job.config.training.last_blocks,
        "views": TOKEN_VIEWS,
        "regularization": c_used,
    }
    record = chosen.model_copy(update=own)
    events.write("note", message=record.sentence())
    place = fine_tuning.SHARES.index(record.share)
    return _result(fit, fitted, record, logits_SMK[place])


def refit_last_blocks(
    job: TrainingJob, events: EventWriter, run: RunTogether | None = None
) -> RefitResult:
    """Train on the training and validation images, as far as the job's part says.

    Args:
        job: the model and the data.
        events: gets notes, metrics and progress.
        run: a function that runs a job in several processes; by default, this one trains alone.
    """
    tokens = _tokens_of_ranks(job, events, run)
    frozen = _build_frozen_network(job, events)
    rows, nothing = frozen.data.training.rows, frozen.data.validation_rows
    head = head_of_rows(job, frozen, rows, nothing, job.part.regularization)
    _write_head(_head_folder(job) / _HEAD_FILE, head)
    start = _Start(job, frozen, tokens or _store_tokens(job, frozen, events), run)
    fit = start.fit(events, {})
    folder = job.folder / _WEIGHTS
    fit.save_at(job.part.share or 0.0, folder)
    fit.clean()
    result = fit.result
    if not isinstance(result, RefitResult):
        raise TypeError(result)
    return result.model_copy(update={"weights": folder})


def tokens_together(job: TrainingJob, events: EventWriter, ranks: Ranks) -> StoredTokens:
    """Compute features and tokens with all ranks, if they are not stored yet."""
    own = job.model_copy(update={"folder": _head_folder(job)})
    return _store_tokens(job, _build_frozen_network(own, events, ranks), events, ranks)


def _tokens_of_ranks(
    job: TrainingJob, events: EventWriter, run: RunTogether | None
) -> StoredTokens | None:
    """Let several processes compute features and tokens; nothing for a single one."""
    if run is None:
        return None
    tokens = run(job, StoredTokens)
    events.catch_up()
    return tokens


def check_shared_folder(job: TrainingJob) -> None:
    """Check that all processes of a training run see the same files.

    Raises:
        ConfigError: if they do not.
    """
    machines = Machines.of(job.folder)
    if not machines.shares_folder:
        raise ConfigError(
            f"training.processes is {job.config.training.processes} on {len(machines.nodes)} nodes "
            "that share no folder, but training.trainable last_blocks keeps tokens in files that "
            "all processes read. Use a workspace in a folder that all nodes see, set "
            "launcher.nodes to 1, or set training.trainable to head_then_all."
        )


# -- the frozen network ------------------------------------------------------------------------


def _head_folder(job: TrainingJob) -> Path:
    """Return the folder of the head that a fit from tokens starts with."""
    return job.folder if job.part.refit else job.folder / HEAD_FOLDER


def _build_frozen_network(
    job: TrainingJob, events: EventWriter, ranks: Ranks | None = None
) -> FeatureNetwork:
    """Return the frozen network of a job, after checking that it can be divided.

    Without ranks, this process is alone: all features are computed, or were computed by ranks.
    """
    skeleton = build_on_meta(job.config.model, job.image, len(job.classes))
    divisible(skeleton, job.config.training.last_blocks)
    if ranks is None:  # several GPUs may be those of other machines
        config = with_changes(job.config, training={"processes": 1})
        job = job.model_copy(update={"config": config})
    return build_frozen_network(job, events, ranks)


def _fit_frozen_head(job: TrainingJob, events: EventWriter) -> tuple[FeatureNetwork, TrainResult]:
    """Return the frozen network, and the result of fitting its head, which is kept in a file."""
    folder = _head_folder(job)
    own = job.model_copy(update={"folder": folder})
    began = time.monotonic()
    frozen = _build_frozen_network(own, events)
    fitted = head_first(own, frozen, events, began)
    if not (folder / _HEAD_FILE).exists():
        weights, _ = read_tensors(fitted.best / WEIGHTS_FILE)
        own_name = next(name for name, each in frozen.model.named_modules() if each is frozen.head)
        tensors = {name: weights[f"{own_name}.{name}"] for name in ("weight", "bias")}
        write_tensors(folder / _HEAD_FILE, tensors)
    return frozen, fitted


def _store_tokens(
    job: TrainingJob, frozen: FeatureNetwork, events: EventWriter, ranks: Ranks | None = None
) -> StoredTokens:
    """Compute the tokens that are not stored yet, with all ranks."""
    ranks = ranks or Ranks()
    store = _token_store(job, frozen, ranks)
    if ranks.is_first:
        store.check_space()
        _announce(store, events, ranks.size)
    file = store.file(lambda done, of: events.progress(done, of, "tokens"))
    return StoredTokens(
        file=file,
        blocks=job.config.training.last_blocks,
        head=_head_folder(job) / _HEAD_FILE,
        mirrored=store.mirrored,
    )


def _token_seconds(job: TrainingJob, frozen: FeatureNetwork) -> float:
    """Return about how long the tokens take that are not stored yet."""
    store = _token_store(job, frozen, Ranks())
    left = store.remaining()
    return left * store.seconds_per_image() if left else 0.0


def _token_store(job: TrainingJob, frozen: FeatureNetwork, ranks: Ranks) -> TokenStore:
    """Return where the tokens of training and validation images are kept."""
    settings = job.config.training
    model = divisible(frozen.model, settings.last_blocks)
    usable = manifests.usable(manifests.load(job.manifest_file))
    identity = [job.config.augmentation.model_dump_json(), str(job.config.seed)]
    identity += [repr(stage_keys.plugins(job.config, "augmentation"))]
    mirrored = model.test_time_flip
    return TokenStore(
        model=model,
        blocks=len(model.blocks) - settings.last_blocks,
        images=frozen.data.images,
        rows=folds.find_used_rows(usable),
        image=job.image,
        augmentation=SeededAugmentation(job.config.augmentation, job.image, job.config.seed),
        augmented="" if mirrored else "\n".join(identity),
        mirrored=mirrored,
        folder=frozen.folder,
        device=frozen.device,
        precision=frozen.precision.name,
        batch_size=suitable_batch_size(job.image, frozen.device),
        group=ranks if ranks.size > 1 else None,
    )


def _announce(store: TokenStore, events: EventWriter, processes: int) -> None:
    """Say how large the tokens are that are not stored yet, and how long they take."""
    if left := store.remaining():
        size = left * store.bytes_per_image() / 1e9
        words = f"tokens of {counted(left, 'image')} in {TOKEN_VIEWS} views: "
        words += f"{size:.2g} GB"
        if left > _TOO_FEW_TO_MEASURE:
            words += f", about {duration(left * store.seconds_per_image() / processes)}"
        events.write("note", message=words)


# -- training images that are predicted by fits without them -----------------------------------


def _parts_to_hold_out(job: TrainingJob, frozen: FeatureNetwork) -> list[Integers]:
    """Return parts of the training images to predict; none if there are validation images."""
    if len(frozen.data.validation_rows) >= FEWEST_VALIDATION:
        return []
    rows = frozen.data.training.rows
    parts = split_into_folds(frozen.data.labels[rows], units_of_rows(job, rows), FOLDS_OF_BLOCKS)
    return parts if len(parts) > 1 else []


def _of_held_out(
    start: _Start,
    whole: TokenFit,
    parts: list[Integers],
    regularization: float,
    events: EventWriter,
) -> tuple[Array, Array]:
    """Return logits (S, N, K) and truth of training images, each by a fit without its part.

    Args:
        start: the tokens.
        whole: the finished fit on all training images, whose plan the others follow.
        parts: the parts to hold out, as rows among the training images.
        regularization: C of the heads.
        events: gets the progress.
    """
    logits, labels = [], []
    for number, held_out in enumerate(parts):
        file = start.job.folder / _FOLDS_FOLDER / f"{number + 1}.safetensors"
        if not file.exists():
            fold = start.tokens.model_copy(update={"fold": number, "folds": FOLDS_OF_BLOCKS})
            head = _head_without(start, held_out, regularization)
            found = _fold_logits(start, whole, fold, head, file.with_suffix(""))
            write_tensors(file, found)
            shutil.rmtree(file.with_suffix(""), ignore_errors=True)
        tensors, _ = read_tensors(file)
        logits.append(tensors["logits"].numpy())
        labels.append(tensors["labels"].numpy())
        events.progress(number + 1, len(parts), "fold")
    return np.concatenate(logits, 1), np.concatenate(labels)


def _head_without(start: _Start, held_out: Integers, regularization: float) -> FittedHead:
    rows = start.frozen.data.training.rows
    return head_of_rows(
        start.job, start.frozen, np.delete(rows, held_out), rows[:0], regularization
    )


def _fold_logits(
    start: _Start, whole: TokenFit, tokens: StoredTokens, head: FittedHead, folder: Path
) -> Tensors:
    """Train without a part of the training images, and predict it."""
    _write_head(folder / _HEAD_FILE, head)
    tokens = tokens.model_copy(update={"head": folder / _HEAD_FILE})
    length = {"time_limit": None}
    plan = TrainingRecord(step_plan=_result_of(whole).step_plan)
    part = start.job.part.model_copy(update={"plan_steps_per_epoch": whole.steps_per_epoch})
    quiet = EventWriter(folder / EVENTS_FILE)  # its metrics are not those of the run
    fit = start.fit(quiet, length, plan, tokens=tokens, folder=folder, part=part)
    return {"logits": torch.from_numpy(fit.logits_along()), "labels": torch.from_numpy(fit.truth)}


# -- results -----------------------------------------------------------------------------------


def _result(
    fit: TokenFit,
    fitted: TrainResult,
    record: FineTuningRecord,
    logits_NK: Array,
) -> TrainResult:
    """Save the weights at the chosen share, and return the result of the fit with them."""
    result = _result_of(fit)
    kept = quality(torch.from_numpy(logits_NK), fit.truth)
    best = fitted.best
    if not record.kept_head:
        best = fit.job.folder / FINAL
        fit.save_at(record.share, best)
    fit.clean()
    count = sum(each.numel() for each in whole_model(fit.model).parameters())
    changes: dict[str, Any] = {"best": best, "fine_tuning": record, "parameters": count}
    if record.kept_head:
        changes["probe"] = fitted.probe
    seconds = result.seconds + time.monotonic() - fit.ended
    return result.model_copy(update={**changes, **kept.of_result(), "seconds": seconds})


def _result_of(fit: TokenFit) -> TrainResult:
    """Return the result of a fit that is no refit."""
    if not isinstance(fit.result, TrainResult):
        raise TypeError(fit.result)
    return fit.result


def _write_head(file: Path, head: FittedHead) -> None:
    tensors = {"weight": torch.from_numpy(head.weight_KD), "bias": torch.from_numpy(head.bias_K)}
    write_tensors(file, tensors)
