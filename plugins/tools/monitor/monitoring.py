"""Check a stream: `patchline monitor MODEL DATA`.

The package predicts, so neither torch nor a plugin of the model is needed.

Shapes: M reference images, N images, K classes or labels, D features.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.flows.commands.switches import data_config
from patchline.flows.notifications import events
from patchline.flows.progress.progress_display import display
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.near_duplicates.search import Progress
from patchline.pipeline.errors import DataError, ModelReferenceError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import (
    REFERENCE_IMAGES_FILE,
    ReferenceImages,
    load_reference_images,
)
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from patchline.pipeline.registry.serving.traffic_recorder import is_traffic
from patchline.pipeline.registry.version_records import VersionRecords, available_records
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugins.tools.monitor.arrived_images import (
    ArrivedImages,
    Computed,
    ImageFiles,
    RecordedTraffic,
    independent_images,
    independent_reference,
)
from patchline.plugins.tools.monitor.check_journal import (
    CheckJournal,
    Period,
    StreamCheck,
    period_of,
)
from patchline.plugins.tools.monitor.drift_page import PageImages, write_page
from patchline.plugins.tools.monitor.drift_tests import (
    FeatureKernel,
    class_shares,
    drift_tests,
    fewest_images,
)
from patchline.plugins.tools.monitor.shifts import (
    ConfidenceShift,
    LabelShift,
    confidence,
    label_shifts,
    mean_estimate,
    predict,
    predictions_of,
    stream_accuracy,
)
from patchline.plugins.tools.monitor.tool import DRIFT_DETECTED

Array = np.ndarray[Any, Any]
LEAST_IMAGES = 20


class MonitorChoices(FrozenModel):
    """How a stream is monitored."""

    false_alarms: float | None = None
    """Probability of any false alarm in a period of checks; by default that of earlier checks, or
    0.05."""
    checks: int | None = None
    """Checks in a period; by default as before, or 365."""
    least_images: int = LEAST_IMAGES
    """Fewest independent new images of a check; with fewer, nothing is tested or spent."""


class TooFewImagesError(DataError):
    """A stream with too few new images: whether they have drifted is not known."""


@dataclass(frozen=True)
class Monitored:
    """The result of `patchline monitor`.

    Attributes:
        reference: the version.
        stream: the stream that was looked at.
        check: the check.
        is_new: whether it was made now; otherwise no image is new since then, and only its
            accuracy is that of the labels there are now.
    """

    reference: ModelReference
    stream: str
    check: StreamCheck
    is_new: bool


def reference_of(records: VersionRecords) -> ReferenceImages:
    """Return what the images of a version's streams are compared with.

    Raises:
        ModelReferenceError: if the version holds none.
    """
    reference = load_reference_images(records.folder / "artifacts" / REFERENCE_IMAGES_FILE)
    if reference is None or not len(reference):
        raise ModelReferenceError(
            f"Whether images have drifted is not known: the package of {records.label} holds no "
            f"{REFERENCE_IMAGES_FILE}, the reference to compare them with. Train and register the "
            "model again."
        )
    return reference


def monitor(
    version: ModelReference,
    config: RunConfig,
    stream: str,
    choices: MonitorChoices,
    workspace: Path,
    on_progress: Progress,
) -> Monitored:
    """Compare the images of a stream that are new since the last check with the reference.

    Args:
        version: the version of the model to monitor.
        config: its section `data` names the source.
        stream: identifies the stream.
        choices: how the user wants the stream to be monitored.
        workspace: the folder `.patchline`.
        on_progress: called as images are read and predicted.

    Raises:
        ModelReferenceError: if the version is not there, or holds no reference.
        TooFewImagesError: if too few images are new.
        DataError: if the stream cannot be read.
        ConfigError: if the rate is not that of earlier checks.
    """
    records = available_records(version)
    reference = reference_of(records)
    journal = CheckJournal(workspace, records.label, stream)
    with journal.alone():
        earlier = journal.checks()
        period = period_of(earlier, choices.false_alarms, choices.checks)
        arrived: ArrivedImages
        if config.data.path is not None and is_traffic(folder := Path(config.data.path)):
            arrived = RecordedTraffic(records, reference, folder)
        else:
            arrived = ImageFiles(records, reference, config, workspace, on_progress)
        checked = {key for check in earlier for key in check.keys}
        new = [place for place, key in enumerate(arrived.keys) if key not in checked]
        predictions = {
            key: prediction
            for check in earlier
            for key, prediction in zip(check.keys, check.predictions, strict=False)
        }
        if not new and earlier:
            accuracy = stream_accuracy(
                records.package, reference, arrived, predictions, on_progress
            )
            update = {"accuracy": accuracy.accuracy, "accuracy_unknown": accuracy.unknown}
            last = earlier[-1].model_copy(update=update)
            return Monitored(version, stream, last, is_new=False)
        _check_enough(new, earlier, stream, choices.least_images)
        computed = arrived.computed(new, on_progress)
        chosen = [new[place] for place in computed.positions]
        _check_enough(chosen, earlier, stream, choices.least_images)
        number = len(earlier) + 1
        keys = tuple(arrived.keys[place] for place in chosen)
        groups = [arrived.groups[place] for place in chosen]
        independence = independent_images(
            keys, groups, computed.pictures, records, reference, on_progress
        )
        tested, before = computed.of(independence.places), independent_reference(reference)
        _check_enough_independent(tested, before, len(chosen), stream, period, choices)
        kernel = FeatureKernel(before.features_MD) if before.has_features else None
        result = _run_tests(records.package, before, tested, kernel, period.level, _seed(keys))
        own = predictions_of(records.package, computed.probabilities_NK)
        predictions.update(zip(keys, own, strict=True))
        accuracy = stream_accuracy(records.package, reference, arrived, predictions, on_progress)
        check = StreamCheck(
            number=number,
            at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            false_alarms=period.false_alarms,
            checks=period.checks,
            spent=period.spent(number),
            images=len(chosen),
            independent_images=len(tested.positions),
            reference_images=len(reference),
            independent_reference_images=len(before),
            independence_unknown=independence.unknown,
            **result,
            **_shifts(records.package, before, tested),
            accuracy=accuracy.accuracy,
            accuracy_unknown=accuracy.unknown,
            notes=(*arrived.notes, *_note_few(len(tested.positions))),
            page=journal.file_of(number, ".html"),
            keys=keys,
            predictions=tuple(own),
        )
        images = PageImages(
            names=[arrived.names[new[place]] for place in tested.positions],
            picture=lambda place: arrived.picture(new[tested.positions[place]]),
            computed=tested,
            kernel=kernel,
        )
        write_page(check, earlier, stream, records, before, images)
        journal.write(check)
    return Monitored(version, stream, check, is_new=True)


def _check_enough(new: Sequence[int], earlier: list[StreamCheck], stream: str, least: int) -> None:
    least = max(least, 1)
    if len(new) >= least:
        return
    values = {"count": len(new), "stream": stream, "earlier": earlier, "least": least}
    words = render_markdown("too_few.md.j2", __package__, images=None, fewest=None, **values)
    raise TooFewImagesError(words)


def _check_enough_independent(
    tested: Computed,
    reference: ReferenceImages,
    images: int,
    stream: str,
    period: Period,
    choices: MonitorChoices,
) -> None:
    """Refuse fewer independent images than the user wants, or than could show any drift."""
    has_features = reference.has_features and tested.features_ND is not None
    fewest = fewest_images(reference, period.level, has_features=has_features)
    least, count = max(choices.least_images, fewest), len(tested.positions)
    if count >= least:
        return
    values = {"count": count, "stream": stream, "earlier": (), "least": least}
    words = render_markdown("too_few.md.j2", __package__, images=images, fewest=fewest, **values)
    raise TooFewImagesError(words)


def _note_few(independent: int) -> list[str]:
    if independent >= LEAST_IMAGES:
        return []
    images = counted(independent, "independent image")
    return [f"{images} can show only a gross drift; wait for more"]


def _run_tests(
    package: PackagedModel,
    reference: ReferenceImages,
    computed: Computed,
    kernel: FeatureKernel | None,
    level: float,
    seed: int,
) -> dict[str, Any]:
    """Return the tests, and what explains a drift, by the fields of `StreamCheck`."""
    outputs = computed.probabilities_NK, computed.features_ND
    classes = package.classes
    tests = drift_tests(reference, *outputs, level, seed=seed, classes=classes, kernel=kernel)
    shares = None
    if tests.drift and not package.is_multi_label:
        shares = class_shares(reference, *outputs, classes, seed=seed)
    return {"tests": tests, "class_shares": shares}


def _seed(keys: Sequence[str]) -> int:
    """Return a seed that depends on the images alone, so that a repeated check is the same."""
    return int(hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:12], 16)


def _shifts(
    package: PackagedModel,
    reference: ReferenceImages,
    computed: Computed,
) -> dict[str, Any]:
    """Return what has shifted, by the fields of `StreamCheck`."""
    before_MK = predict(reference.probabilities_MK, package.thresholds_K)
    now_NK = predict(computed.probabilities_NK, package.thresholds_K)
    many = package.is_multi_label
    certain_M = confidence(reference.probabilities_MK, before_MK, is_multi_label=many)
    certain_N = confidence(computed.probabilities_NK, now_NK, is_multi_label=many)
    shifts: tuple[LabelShift, ...] = label_shifts(package.classes, before_MK, now_NK)
    return {
        "labels": shifts,
        "confidence": ConfidenceShift(
            before=mean_estimate(certain_M), now=mean_estimate(certain_N)
        ),
    }


class _Subject(NamedTuple):
    """What is checked."""

    version: ModelReference
    config: RunConfig
    stream: str


def check_stream(
    model: str, data: str, choices: MonitorChoices, columns: Mapping[str, Any]
) -> Monitored:
    """Check the images of a stream that are new, and send an event if they have drifted.

    Args:
        model: names the model, as the command's MODEL does.
        data: names the images, as the command's DATA does.
        choices: how the stream is monitored.
        columns: columns of a table of images, by the name of their setting, such as `label_column`.
    """
    version, config, stream = subject = _subject(model, data, columns)
    _tell(subject)  # this check may end without a result
    display().stage(f"Comparing {data} with {version.name}, version {version.version}")
    result = monitor(version, config, stream, choices, WORKSPACE.resolve(), display().advance)
    _tell(subject)
    return result


def tell_earlier_drifts(model: str, data: str, columns: Mapping[str, Any]) -> list[Monitored]:
    """Send the events of drifts of a stream that could not be sent, and return their checks.

    The server was down then, or the process was killed. What cannot be sent now is told later.

    Args:
        model: names the model, as the command's MODEL does.
        data: names the images, as the command's DATA does.
        columns: columns of a table of images, by the name of their setting, such as `label_column`.
    """
    version, _, stream = subject = _subject(model, data, columns)
    return [Monitored(version, stream, check, is_new=False) for check in _tell(subject)]


def stream_of(config: RunConfig) -> str:
    """Return what identifies a stream: an absolute path, an address, or the name of a source."""
    path = config.data.path
    if path is None:
        return config.data.source
    local = Path(path)
    return str(local.resolve()) if local.exists() else path


def _subject(model: str, data: str, columns: Mapping[str, Any]) -> _Subject:
    config = data_config(data, columns)
    return _Subject(resolve(model), config, stream_of(config))


def _tell(subject: _Subject) -> list[StreamCheck]:
    """Send the events that have not been sent, and return their checks."""
    from patchline.plugins.tools.monitor.check_journal import CheckJournal

    version, stream = subject.version, subject.stream
    label = f"{version.name}/{version.version}"
    journal = CheckJournal(WORKSPACE.resolve(), label, stream)
    untold = journal.untold()
    for check in untold:
        facts = {
            "name": version.name,
            "version": version.version,
            "stream": stream,
            "check": check.number,
            "images": check.images,
            "independent_images": check.independent_images,
            "p_value": check.tests.p_value,
            "level": check.tests.level,
            "page": str(check.page),
        }
        own = uuid.uuid5(uuid.NAMESPACE_URL, f"{journal.folder}#{check.number} {check.at}")
        resource = f"patchline.model.{version.name}"
        if events.deliver(DRIFT_DETECTED, resource, facts, own):
            journal.note_told(check)
    return untold
