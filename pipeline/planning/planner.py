"""Make the plan of a run with a preset: collect the facts, measure speeds, decide the settings."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig, flatten_settings
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import UNLABELLED, IngestedData
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.source_listing import uses_labels
from patchline.pipeline.data.splits.folds import folds_of
from patchline.pipeline.data.symmetry.assumed_symmetries import describe_unmeasured_symmetries
from patchline.pipeline.errors import DataError, WorkerError
from patchline.pipeline.evaluation.metrics.mean_average_precision import certain_positives
from patchline.pipeline.models.time_after_training import (
    PREDICTING_IS_FASTER,
    estimate_evaluation,
    estimate_packaging,
    fixed_seconds,
    predicting_rate,
    slowdown,
)
from patchline.pipeline.planning.draft import FEW_FOR_A_CHOICE, FOLDS, Start, draft_plan
from patchline.pipeline.planning.facts import (
    DataFacts,
    MachineFacts,
    Plan,
    PlanFacts,
    UserSettings,
)
from patchline.pipeline.planning.measuring_job import (
    MEASURING,
    MeasuredCandidate,
    Measurement,
    MeasuringJob,
)
from patchline.pipeline.planning.published import FEATURES, Published, size_of_weights
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.planning.tiers import OWN
from patchline.pipeline.planning.time_shares import PLANNING_SHARE, TimeShares
from patchline.pipeline.planning.weights_choice import (
    SUITABLE,
    WeightsChoice,
    WeightsRequest,
    choose,
)
from patchline.pipeline.plugin_system.plugin_loader import Kind
from patchline.pipeline.plugin_system.plugin_settings import check_plugins
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.distillation.teacher import teacher_folder
from patchline.pipeline.training.initial_weights import local_weights, recipe
from patchline.pipeline.training.initial_weights.record import InitialWeights
from patchline.pipeline.training.machine import choose_device, detect_cached_machine
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.host.processors import this_processor
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workspace import cache_limit
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.workspace import workspace_of

_MOST_SECONDS, _SHARE_OF_LIMIT = 4.0, 0.05
_TURNS = 6
_POINTS, _MOST_COMPARED = 5, 2_000
"""Between a fitted head and trained weights, on so many validation images at most
(`patchline.pipeline.training.parts.fine_tuning`)."""
_ACCELERATOR_IS_FASTER = 50
"""Than the CPU beside it, on which explanations and the package are computed; an assumption."""
CODE = (
    *MEASURING.code,
    *(f"{MEASURING.module}.{name}" for name in ("planner", "rules", "weights_choice")),
)
"""Where the code begins that decides a plan."""
_KEPT_SECTIONS = ("augmentation", "model", "optimizer", "training")
_KEPT_OF_DATA = ("image_size", "workers", "resize")
_KEPT_OF_RECORD = ("average_last", "shuffle_window")
"""What a config of an earlier version may have set."""
OnNote = Callable[[str], None]


def measure_apart(job: MeasuringJob, workspace: Path) -> Measurement:
    """Measure in a process of its own."""
    make_folder(workspace)
    with tempfile.TemporaryDirectory(dir=workspace, prefix=".building-") as folder:
        resources = Resources.for_device("auto")
        job = job.model_copy(update={"workspace": workspace.resolve()})
        return MEASURING.run(Path(folder), job, resources=resources)


def may_choose_weights(config: RunConfig) -> bool:
    """Return whether the plan may choose weights: the user has set neither them nor a model."""
    models = {key for key in user_settings(config) if key.startswith("model.")} - {*SUITABLE}
    taught = config.training.teacher is not None  # by a model that knows more than weights would
    return config.preset is not None and uses_labels(config) and not models and not taught


def weights_ingredients(config: RunConfig, data: IngestedData) -> Ingredients:
    """Return everything that decides the choice of weights, but the measurement."""
    found = local_weights.search(config.name or data.name).model_dump_json()
    known = _ingredients(config, data)
    return {**known, "local_weights": found, **stage_keys.package_versions()}


def _ingredients(config: RunConfig, data: IngestedData) -> Ingredients:
    return {
        "data": data.fingerprint,
        "facts": plan_facts(config, data).model_dump_json(),
        "settings": json.dumps(user_settings(config), sort_keys=True),
        "code": stage_keys.code(*CODE),
    }


def choose_weights(
    config: RunConfig, data: IngestedData, workspace: Path, before: float = 0.0
) -> WeightsChoice:
    """Return the weights that a run starts from where its user has set neither them nor a model.

    Args:
        config: the run's settings, with a preset and not yet resolved.
        data: the data to train on.
        workspace: the folder `.patchline`.
        before: seconds that the run takes before the training, apart from this choice.
    """
    began, settings, facts = time.monotonic(), user_settings(config), plan_facts(config, data)

    def taken() -> float:
        return time.monotonic() - began

    def measure(follows: RunConfig) -> Measurement:
        facts = plan_facts(follows, data)
        job = build_measuring_job(follows, data, facts, _start(follows, None), planned=taken())
        return measure_apart(job, workspace)

    limit = _limit(facts, settings)
    if limit < math.inf:
        others = before + PLANNING_SHARE * limit + fixed_seconds()
        facts = facts.model_copy(update={"other_seconds": others})
    request = WeightsRequest(config, data, facts, settings)
    return choose(request, workspace, measure, lambda: taken() > PLANNING_SHARE * limit)


def plan_run(
    config: RunConfig,
    data: IngestedData,
    workspace: Path,
    on_note: OnNote,
    choice: WeightsChoice | None = None,
    start: InitialWeights | None = None,
    *,
    before: Callable[[], float] = lambda: 0.0,
    planned: float = 0.0,
) -> Plan:
    """Return a new plan of a run with a preset.

    Args:
        config: the run's settings, with a preset and not yet resolved.
        data: the data to train on.
        workspace: the folder `.patchline`.
        on_note: called if the speed could not be measured.
        choice: the choice of initial weights, if the plan has made one.
        start: the initial weights, if there are any.
        before: returns about how many seconds the run takes before the training, once the speed is
            measured.
        planned: seconds that planning has taken so far.

    Returns:
        The plan; without speeds in its facts if they could not be measured.
    """
    facts, begins, settings = plan_facts(config, data), _start(config, start), user_settings(config)
    if facts.weights_side and begins == "published":  # the weights' own size, which nobody has set
        settings.pop("data.image_size", None)
    try:
        measured = choice.measurement if choice else None
        if measured is None:
            sha256 = config.record.teacher_sha256
            teacher = teacher_folder(workspace, sha256).resolve() if sha256 else None
            job = build_measuring_job(config, data, facts, begins, teacher, planned=planned)
            measured = measure_apart(job, workspace)
        facts = measured.added_to(facts)
    except WorkerError as error:
        on_note(f"the training speed could not be measured and is estimated: {error}")
    made = fit_time(config, facts, settings, begins, before())
    assumed = describe_unmeasured_symmetries(with_plan(config, made))
    changed = [assumed] * (assumed not in ("", describe_unmeasured_symmetries(config)))
    first, others = (choice.reasons[:1], choice.reasons[1:]) if choice else ((), ())
    uses_time = config.training.time_limit or "step_plan" in made.settings.get("record", {})
    time_line = [made.shares.sentence()] if made.shares and uses_time else []
    changes = {
        "summary": (*made.summary, *time_line, *first),
        "reasons": (*others, *made.reasons, *changed),
    }
    return made.model_copy(update=changes)


def fit_time(
    config: RunConfig,
    facts: PlanFacts,
    settings: Mapping[str, Any],
    start: Start,
    before: float,
) -> Plan:
    """Return a plan whose parts fit the time together, with the division of the time.

    What is trained decides what the rest takes, and that in turn what is trained. Each turn goes
    half of the way: with the whole of it, a small size of images would alternate with a large one.

    Args:
        config: the run's settings, with a preset and not yet resolved.
        facts: the facts with the measured speeds.
        settings: what the user has set, by dotted key.
        start: what the training starts from.
        before: seconds that the run takes before the training.
    """
    made, slower = plan(facts, settings, start), slowdown()
    for turn in range(_TURNS):
        shares = _shares(config, made, settings, start, before, slower)
        if shares is None:
            break
        rest = (shares.others + facts.other_seconds) / 2 if turn else shares.others
        facts = facts.model_copy(update={"other_seconds": rest})
        made = plan(facts, settings, start).model_copy(update={"shares": shares})
    return made


def _limit(facts: PlanFacts, settings: Mapping[str, Any]) -> float:
    """Return the seconds that the whole run may take; infinite for a number of epochs."""
    user = UserSettings(settings)
    return math.inf if user.epochs else user.seconds or facts.minutes * 60


def _shares(
    config: RunConfig,
    made: Plan,
    settings: Mapping[str, Any],
    start: Start,
    before: float,
    slower: float,
) -> TimeShares | None:
    """Return what the time of a planned run is spent on; None if that is not known."""
    facts, data, limit = made.facts, made.facts.data, _limit(made.facts, settings)
    config, published = with_plan(config, made), Published(facts, UserSettings(settings))
    is_known = published.speed if start == "published" else start != "unlabelled"
    if limit == math.inf or not is_known:
        return None
    tested, held_out = data.test_images, data.validation_images
    features, predicted, trained = 0.0, float(tested + held_out), made.images_per_second
    precision = facts.speed_near(made.candidate).precision
    rate = predicting_rate(config, trained, precision)
    if start == "published":
        trainable = published.trainable
        rate = published.exact_speed or predicting_rate(
            config, published.speed / PREDICTING_IS_FASTER, precision
        )
        features = published.feature_seconds
        if trainable == "head" and precision == "float32" and facts.machine.device == "cpu":
            predicted = 0.0  # the features are as exact as the package
        elif published.seconds_before:
            share = published.share_of_blocks if trainable == "last_blocks" else 1.0
            predicted += _POINTS * share * min(_MOST_COMPARED, held_out)
        features = max(features, published.seconds_before)
    on_cpu = rate if facts.machine.device == "cpu" else rate / _ACCELERATOR_IS_FASTER
    size = facts.parameters
    explained = estimate_evaluation(
        0, on_cpu, size, slower, explains=config.evaluation.explanations
    )
    return TimeShares(
        limit=limit,
        before=before,
        features=features,
        evaluation=explained + predicted / rate,
        packaging=estimate_packaging(tested, on_cpu, size, slower),
    )


def _of_sets(data: IngestedData) -> dict[str, float]:
    """Return what only the labels and sizes of the images tell about sets of labels, if any."""
    if data.task != MULTI_LABEL or not data.classes:
        return {}
    rows = manifests.usable(manifests.load(data.manifest_file))
    texts = rows.loc[rows["split"] == "validation", "label"]
    sides = rows[["width", "height"]].to_numpy(np.float64)
    away = 1 - sides.min(1) / np.maximum(1, sides.max(1))
    labelled = sum(count for split, count in data.counts.items() if split != UNLABELLED)
    return {
        "labels_per_image": round(sum(data.class_counts.values()) / max(1, labelled), 3),
        "validation_positives": certain_positives(label_sets.matrix(list(texts), data.classes)),
        "cropped_away": round(float(np.median(away)), 3) if len(away) else 0.0,
    }


def _start(config: RunConfig, weights: InitialWeights | None) -> Start:
    """Return what the training starts from."""
    if not uses_labels(config):
        return "unlabelled"
    if _has_frozen_features(config):
        return "published"
    if not config.model.init:
        return "random"
    return "classifier" if weights is None or weights.classes else "encoder"


def with_plan(config: RunConfig, made: Plan) -> RunConfig:
    """Return the config with the settings of its plan, and without its preset."""
    settings = config.model_dump(mode="json")
    settings["preset"] = None
    planned = config_files.merge_settings(settings, made.settings)
    # Another optimizer takes no settings of the one before, except those that the user has set.
    prefix = "optimizer."
    kept = {
        key.removeprefix(prefix): value
        for key, value in user_settings(config).items()
        if key.startswith(prefix)
    }
    return config_files.validate_config({**planned, "optimizer": {**planned["optimizer"], **kept}})


def user_settings(config: RunConfig) -> dict[str, Any]:
    """Return what the user has set, by dotted key.

    That is what was listed when the settings were read, and every value that is not the default:
    a form in the Prefect UI sends all values.
    """
    values = _flat(config)
    embedding = {"name": config.model.patch_embedding.name}
    names = {
        "model": {"name": config.model.name, "patch_embedding": embedding},
        "augmentation": {"name": config.augmentation.name},
    }
    defaults = _flat(check_plugins(RunConfig.model_validate(names)))
    plain = _flat(check_plugins(RunConfig()))
    listed = set(config.preset.keep if config.preset else ())
    chosen = {
        key
        for key, value in values.items()
        if key in listed or value != (plain if key.endswith("name") else defaults).get(key)
    }
    return {key: values.get(key) for key in sorted(chosen | (listed & set(values)))}


def _flat(config: RunConfig) -> dict[str, Any]:
    dump = config.model_dump(mode="json")
    sections = {name: dump[name] for name in _KEPT_SECTIONS}
    sections["data"] = {key: dump["data"][key] for key in _KEPT_OF_DATA}
    sections["record"] = {key: dump["record"][key] for key in _KEPT_OF_RECORD}
    return flatten_settings(sections)


def plan_facts(config: RunConfig, data: IngestedData) -> PlanFacts:
    """Return the facts that need no measurement."""
    machine = detect_cached_machine()
    device = choose_device(config.training, machine)
    greyscale = config.data.channels == 1 if config.data.channels else data.greyscale
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    of_data = DataFacts(
        training_images=data.training_images,
        unlabelled_images=data.counts.get(UNLABELLED, 0),
        validation_images=data.counts["validation"],
        test_images=data.counts["test"],
        classes=len(data.classes),
        median_side=data.median_side,
        greyscale=greyscale,
        mirror_symmetric=data.mirror.is_symmetric,
        mirror=data.mirror.why,
        **_of_sets(data),
    )
    folded = _can_be_folded(config, data, of_data)
    size = size_of_weights(config) if _has_frozen_features(config) else {}
    return PlanFacts(
        preset=config.preset.name if config.preset else "balanced",
        data=of_data.model_copy(update={"can_be_folded": folded}),
        machine=MachineFacts(
            device=device,
            name=this_processor().name if device == "cpu" else machine.devices[device],
            threads=config.training.threads or machine.threads,
            vector_instructions=machine.cpu_capability,
            memory_gib=memory,
            host_memory_gib=memory,
            cache_gib=cache_limit.limit() / 2**30 if workspace_of(data.manifest_file).uri else None,
            processes=config.training.processes,
            machines=worker_start.current_launcher().machines,
        ),
        teacher_passes=_teacher_passes(config, data),
        **size,
    )


def _teacher_passes(config: RunConfig, data: IngestedData) -> int:
    """Return how many images a teacher predicts, times their views; 0 without one."""
    if config.training.teacher is None:
        return 0
    return data.training_images * (2 if data.mirror.is_symmetric else 1)


def _can_be_folded(config: RunConfig, data: IngestedData, facts: DataFacts) -> bool:
    """Return whether folds may be planned: the validation images are few, and each class divides.

    Where the validation images are enough, nobody asks, and the manifest is not read.
    """
    if not facts.classes or facts.choosing_images >= FEW_FOR_A_CHOICE:
        return False
    rows = manifests.usable(manifests.load(data.manifest_file))
    try:
        folds_of(rows, FOLDS, config.data.split_seed)
    except DataError:
        return False
    return True


def ingredients(
    config: RunConfig,
    data: IngestedData,
    choice: WeightsChoice | None = None,
    start: InitialWeights | None = None,
) -> Ingredients:
    """Return everything that decides a plan, but the measurement."""
    # The versions of packages count: another torch trains at another speed, and other weights.
    kinds: tuple[Kind, ...] = ("augmentation", "objective", "model", "patch_embedding")
    return {
        **_ingredients(config, data),
        "start": _start(config, start),
        **stage_keys.settings(config, "objective"),
        **stage_keys.software(config, *kinds),
        **({"weights": choice.model_dump_json()} if choice else {}),
    }


def build_measuring_job(
    config: RunConfig,
    data: IngestedData,
    facts: PlanFacts,
    start: Start,
    teacher: Path | None = None,
    *,
    planned: float = 0.0,
) -> MeasuringJob:
    """Return the candidates for a run, and how long measuring them may take.

    Args:
        config: the run's settings, with a preset and not yet resolved.
        data: the data to train on.
        facts: the facts that need no measurement.
        start: what the training starts from.
        teacher: folder of the model that predicts the training images, if there is one.
        planned: seconds that planning has taken so far.
    """
    settings = user_settings(config)
    name, others = OWN, dict[str, Any]()
    if start == "published":
        # What needs all weights does not change the speed of their features.
        alone = {"teacher": None, "final_model": None, "trainable": "head"}
        record = {"extends": None, "teacher_sha256": None}
        name, others = FEATURES, {"training": alone, "record": record}
    to_measure = {name: others}
    if start not in ("published", "unlabelled"):
        unmeasured, draft = (
            plan(facts, settings, start).settings,
            draft_plan(facts, settings, start),
        )
        to_measure = {each.name: {**unmeasured, **each.settings} for each in draft.measured_first}
    limit = config.training.time_limit
    seconds = duration_seconds(limit) * _SHARE_OF_LIMIT if limit else _MOST_SECONDS
    whole = _limit(facts, settings)
    left = None if whole == math.inf else max(0.0, PLANNING_SHARE * whole - planned)
    return MeasuringJob(
        candidates=tuple(
            MeasuredCandidate(
                name=each,
                config=_resolve(config, data, settings),
                features_only=each == FEATURES,
            )
            for each, settings in to_measure.items()
        ),
        num_classes=len(data.classes),
        images=data.training_images,
        validation_images=data.counts["validation"],
        teacher=teacher,
        budget_seconds=min(_MOST_SECONDS, seconds),
        most_seconds=left,
    )


def _has_frozen_features(config: RunConfig) -> bool:
    """Return whether a head is trained on the features of the initial weights, at least at first.

    That holds for a file and published weights. Of a model of ours, all weights are trained, if
    `training.trainable` is neither set otherwise nor left to the plan.
    """
    reference = config.model.init
    if not reference:
        return False
    return recipe.is_published(str(reference)) or config.training.trainable != "all"


def _resolve(config: RunConfig, data: IngestedData, settings: dict[str, Any]) -> RunConfig:
    whole = config.model_dump(mode="json")
    whole["preset"] = None
    return ingestion.resolve(
        config_files.validate_config(config_files.merge_settings(whole, settings)), data
    )
