"""The planning stage: collect the facts, plan, and remember the plan for the same facts.

A remembered plan keeps the settings of later runs, and so their stages, the same; a new measurement
would vary with what else the machine does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pipeline import config_files
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.assumed_symmetries import unmeasured_symmetries
from pipeline.data.ingested_data import IngestedData
from pipeline.errors import WorkerError
from pipeline.files.atomic_files import write_text
from pipeline.initial_weights import recipe
from pipeline.planning.facts import DataFacts, MachineFacts, Plan, PlanFacts
from pipeline.planning.fine_tuning import FEATURES, fine_tuning_plan
from pipeline.planning.measuring_job import MODULE, MeasuredCandidate, Measurement, MeasuringJob
from pipeline.planning.plan import candidates, plan
from pipeline.planning.warm_start import warm_start_plan, with_rate
from pipeline.plugin_system.plugin_loader import Kind
from pipeline.plugin_system.plugin_settings import checked_plugins
from pipeline.run_memory import stage_keys
from pipeline.run_memory.stage_memory import Ingredients, StageMemory
from pipeline.tracking import provenance, tracked_run
from pipeline.training.config import duration_seconds
from pipeline.training.machine import choose_device, seen
from pipeline.workers.worker_process import run_worker
from pipeline.workspace import make_folder

STAGE = "plan"
JSON_FILE, TEXT_FILE = "plan.json", "plan.txt"
_MOST_SECONDS, _SHARE_OF_LIMIT = 4.0, 0.05
_CODE = ("__main__", "stage", "plan", "fine_tuning", "warm_start")
_KEPT_SECTIONS = ("augmentation", "model", "optimizer", "training")
_FOLLOW = ("data.image_size", "training.trainable")
"""Settings besides those of the model that follow from initial weights."""
OnNote = Callable[[str], None]


def measured_apart(job: MeasuringJob, workspace: Path) -> Measurement:
    """Measure in a process of its own."""
    make_folder(workspace)
    with tempfile.TemporaryDirectory(dir=workspace, prefix=".building-") as folder:
        return run_worker(MODULE, Path(folder), job, Measurement, lambda _: None)


def planned(
    config: RunConfig,
    data: IngestedData,
    memory: StageMemory,
    on_note: OnNote,
    measure: Callable[[MeasuringJob, Path], Measurement] = measured_apart,
) -> Plan:
    """Return the plan of a run with a preset: the remembered one, or a new one.

    Args:
        config: with a preset; not resolved.
        data: what is trained on.
        memory: may know the plan, and remembers it.
        on_note: called if the speed could not be measured.
        measure: measures the candidates, and may use a folder.
    """
    facts, asked = known_facts(config, data), asked_settings(config)
    make: Callable[[PlanFacts, Mapping[str, Any]], Plan]
    make = fine_tuning_plan if _has_frozen_features(config) else plan
    key = {**ingredients(facts, asked, data), **_measured_with(config)}
    if _is_warm_start(config):
        given = _given(config, asked)
        make = partial(warm_start_plan, given=given)
        key = {**key, "given": ", ".join(sorted(given))}
        asked = with_rate(asked)
    known = memory.recall(STAGE, key, Plan)
    if known is not None:
        return known
    try:
        job = measuring_job(config, data, facts, asked)
        job = job.model_copy(update={"workspace": memory.workspace.resolve()})
        measured = measure(job, memory.workspace)
    except WorkerError as error:
        on_note(f"the training speed could not be measured and is estimated: {error}")
        return with_assumptions(make(facts, asked), config)
    machine = facts.machine
    if machine.device == "cuda" and measured.accelerator_gib:
        machine = machine.model_copy(update={"memory_gib": measured.accelerator_gib})
    update = {"speeds": measured.speeds, "busy_cores": measured.busy_cores, "machine": machine}
    facts = facts.model_copy(update=update)
    made = with_assumptions(make(facts, asked), config)
    memory.remember(STAGE, made, memory.workspace / "plans", key)
    return made


def with_assumptions(made: Plan, config: RunConfig) -> Plan:
    """Return the plan with what its augmentation takes for granted, unless the user has set it."""
    assumed = unmeasured_symmetries(with_plan(config, made))
    if not assumed or assumed == unmeasured_symmetries(config):
        return made
    return made.model_copy(update={"reasons": (*made.reasons, assumed)})


def with_plan(config: RunConfig, made: Plan) -> RunConfig:
    """Return the config with the settings of its plan, and without its preset."""
    settings = config.model_dump(mode="json")
    settings["preset"] = None
    planned = config_files.merged(settings, made.settings)
    # Another optimizer takes no settings of the one before, except those that the user has set.
    prefix = "optimizer."
    kept = {
        key.removeprefix(prefix): value
        for key, value in asked_settings(config).items()
        if key.startswith(prefix)
    }
    return config_files.validated({**planned, "optimizer": {**planned["optimizer"], **kept}})


def log_plan(made: Plan, run: tracked_run.TrackedRun) -> None:
    """Keep the plan with the run: its facts and settings, its text, and tags."""
    for name, text in ((JSON_FILE, made.model_dump_json(indent=2)), (TEXT_FILE, made.text())):
        file = run.folder / name
        write_text(file, text)
        tracked_run.log_file(run, file)
    tags = {"patchline.preset": made.facts.preset, "patchline.plan": made.text().strip()}
    tracked_run.set_tags(run, tags)


def asked_settings(config: RunConfig) -> dict[str, Any]:
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
    defaults = _flat(checked_plugins(RunConfig.model_validate(names)))
    plain = _flat(checked_plugins(RunConfig()))
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
    sections["data"] = {"image_size": dump["data"]["image_size"]}
    return {key: _value(sections, key) for key in config_files.dotted_keys(sections)}


def _value(settings: Mapping[str, Any], key: str) -> Any:
    found: Any = settings
    for part in key.split("."):
        found = found[part]
    return found


def known_facts(config: RunConfig, data: IngestedData) -> PlanFacts:
    """Return the facts that need no measurement."""
    machine = seen()
    device = choose_device(config.training, machine)
    greyscale = config.data.channels == 1 if config.data.channels else data.greyscale
    return PlanFacts(
        preset=config.preset.name if config.preset else "balanced",
        data=DataFacts(
            training_images=data.counts["train"],
            validation_images=data.counts["validation"],
            test_images=data.counts["test"],
            classes=len(data.classes),
            median_side=data.median_side,
            greyscale=greyscale,
            mirror_symmetric=data.mirror.is_symmetric,
            mirror=data.mirror.why,
        ),
        machine=MachineFacts(
            device=device,
            name=provenance.processor() if device == "cpu" else machine.devices[device],
            threads=config.training.threads or machine.threads,
            vector_instructions=machine.cpu_capability,
            memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        ),
    )


def ingredients(facts: PlanFacts, asked: Mapping[str, Any], data: IngestedData) -> Ingredients:
    """Return everything that decides a plan, but the measurement."""
    return {
        "data": data.fingerprint,
        "facts": facts.model_dump_json(),
        "settings": json.dumps(asked, sort_keys=True),
        "code": stage_keys.code(*(f"{MODULE}.{name}" for name in _CODE), "pipeline.layers"),
    }


def _measured_with(config: RunConfig) -> Ingredients:
    """Return what a measured speed depends on beside what the user has set."""
    kinds: tuple[Kind, ...] = ("augmentation", "objective", "model", "patch_embedding")
    objective = stage_keys.settings(config, "objective")
    return {**objective, **stage_keys.plugins(config, *kinds)}


def measuring_job(
    config: RunConfig, data: IngestedData, facts: PlanFacts, asked: Mapping[str, Any]
) -> MeasuringJob:
    """Return the candidates for a run, and how long measuring them may take."""
    if _has_frozen_features(config):
        # What needs all weights does not change the speed of their features.
        alone = {"trainable": "head", "average_last": None, "ensemble": False}
        settings = {"training": alone}
        whole = _resolved(config, data, settings)
        return _job(
            config, data, [MeasuredCandidate(name=FEATURES, config=whole, features_only=True)]
        )
    unmeasured = plan(facts, asked).settings
    known = [
        MeasuredCandidate(
            name=each.name, config=_resolved(config, data, {**unmeasured, **each.settings})
        )
        for each in candidates(facts, asked)
    ]
    return _job(config, data, known)


def _has_frozen_features(config: RunConfig) -> bool:
    """Return whether a head is trained on the features of the initial weights, at least at first.

    That holds for a file and published weights. Of a model of ours, all weights are trained, if
    `training.trainable` is neither set otherwise nor left to the plan.
    """
    reference = config.model.init
    if not reference:
        return False
    return recipe.is_published(str(reference)) or config.training.trainable != "all"


def _is_warm_start(config: RunConfig) -> bool:
    """Return whether all weights of a model of ours are trained again."""
    return bool(config.model.init) and not _has_frozen_features(config)


def _given(config: RunConfig, asked: Mapping[str, Any]) -> set[str]:
    """Return the keys of what the user has set, without what follows from the initial weights."""
    listed = set(config.set_by_user or ())
    follow = {key for key in asked if key.startswith("model.") or key in _FOLLOW}
    return {key for key in asked if key in listed or key not in follow}


def _job(config: RunConfig, data: IngestedData, known: list[MeasuredCandidate]) -> MeasuringJob:
    limit = config.training.time_limit
    seconds = duration_seconds(limit) * _SHARE_OF_LIMIT if limit else _MOST_SECONDS
    return MeasuringJob(
        candidates=tuple(known),
        num_classes=len(data.classes),
        images=data.counts["train"],
        budget_seconds=min(_MOST_SECONDS, seconds),
    )


def _resolved(config: RunConfig, data: IngestedData, settings: dict[str, Any]) -> RunConfig:
    whole = config.model_dump(mode="json")
    whole["preset"] = None
    return ingestion.resolve(config_files.validated(config_files.merged(whole, settings)), data)
