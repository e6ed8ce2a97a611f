"""The stages of a training run as Prefect tasks: each calls one function of the library.

A stage whose result an earlier run has computed from the same data, settings, code and packages is
not repeated: its task ends in the state Cached, which names that run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from prefect.utilities.annotations import opaque, quote

from flows.failures import RETRYING
from flows.progress import display, show_event
from flows.training import run_messages
from pipeline.config import RunConfig
from pipeline.data import ingestion, prepare_stage
from pipeline.data.ingested_data import IngestedData, PreparedData
from pipeline.data.seen_images import notes_on_seen
from pipeline.evaluation import evaluating
from pipeline.evaluation.evaluating import Evaluated
from pipeline.initial_weights import stage as initial_weights
from pipeline.initial_weights.recipe import shown
from pipeline.initial_weights.stage import StartingPoint
from pipeline.metrics.intervals import MetricEstimate
from pipeline.packaging import stage as packaging_stage
from pipeline.packaging.job import Package
from pipeline.packaging.model_card import CardFacts
from pipeline.planning import stage as planning_stage
from pipeline.planning.facts import Plan
from pipeline.registry import promotion, registration
from pipeline.registry.promotion import Promotion
from pipeline.registry.registration import Registered
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.section import Section
from pipeline.tracking import provenance, tracked_run
from pipeline.training import run_parts
from pipeline.training.launching import TrainingInputs
from pipeline.training.run_parts import STAGE, RunParts
from pipeline.training.train_result import TrainResult
from pipeline.workers import prewarm

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

Result = TypeVar("Result", bound=Section)

_OWN = "done before the interruption"
_FRESH = "; `patchline run --fresh` computes everything again"


def step(task: Callable[..., Any], *inputs: Any, after: Any) -> Any:
    """Call a task, which may end in the state Cached, and return its result.

    Prefect's graph shows one edge, from the task that returned `after`; with an edge for every
    input it would be unreadable.
    """
    from prefect.client.schemas.objects import State

    returned = task(*(opaque(value) if value is after else quote(value) for value in inputs))
    return returned.result() if isinstance(returned, State) else returned


@task(
    name="Read the data",
    task_run_name=run_messages.read_name,
    cache_policy=NO_CACHE,
    **RETRYING,
)
def read_data(config: RunConfig, workspace: Path, fresh: bool = False) -> IngestedData:
    """List the source, check every image, and split."""
    return ingestion.ingest(config, workspace, display().advance, fresh=fresh)


@task(
    name="Find the initial weights",
    task_run_name=run_messages.find_weights_name,
    cache_policy=NO_CACHE,
)
def find_initial_weights(config: RunConfig, data: IngestedData, workspace: Path) -> StartingPoint:
    """Find the initial weights, and let the settings follow them."""
    known = data.manifest_file, data.classes
    return initial_weights.starting_point(config, data.name, workspace, *known)


@task(
    name="Plan the training",
    task_run_name=run_messages.plan_name,
    cache_policy=NO_CACHE,
)
def plan_training(config: RunConfig, data: IngestedData, memory: StageMemory) -> Plan | State[Plan]:
    """Fill in the preset from the data, the machine and its measured speed."""
    made = planning_stage.planned(config, data, memory, display().note)
    return ended(made, memory, planning_stage.STAGE, "its plan is used again")


@task(
    name="Decode the images",
    task_run_name=run_messages.decode_name,
    cache_policy=NO_CACHE,
    **RETRYING,
)
def decode_images(
    config: RunConfig, data: IngestedData, memory: StageMemory
) -> PreparedData | State[PreparedData]:
    """Decode every image into the prepared store."""
    prepared = prepare_stage.prepare_run(config, data, memory, display().advance)
    return ended(prepared, memory, prepare_stage.STAGE, "its images are used again")


@task(name="Train the model", task_run_name=run_messages.train_name, cache_policy=NO_CACHE)
def train_model(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    run: tracked_run.TrackedRun,
    memory: StageMemory,
) -> TrainResult | State[TrainResult]:
    """Train in separate processes: once, or with folds or a refit several times."""
    follow = prewarm.following_stages(show_event)
    inputs = TrainingInputs(config, data, prepared, run, memory, show_event)
    trained = RunParts(inputs, display().note, on_last_event=follow).train()
    limit = config.training.time_limit
    what = f"its training (also limited to {limit}) is" if limit else "its training is"
    return ended(trained, memory, STAGE, f"{what} used again{_FRESH}")


@task(
    name="Evaluate on the test images",
    task_run_name=run_messages.evaluate_name,
    cache_policy=NO_CACHE,
)
def evaluate_model(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    run: tracked_run.TrackedRun,
    memory: StageMemory,
) -> Evaluated | State[Evaluated]:
    """Predict the test split and write the report."""
    inputs = (config, data, prepared, trained, run.folder, memory, show_event)
    return ended(evaluating.evaluate_run(*inputs), memory, "evaluate")


@task(name="Package the model", task_run_name=run_messages.package_name, cache_policy=NO_CACHE)
def package_model(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    evaluated: Evaluated,
    card: CardFacts,
    run: tracked_run.TrackedRun,
    memory: StageMemory,
) -> Package | State[Package]:
    """Export to ONNX and compare with the trained model."""
    inputs = (config, data, prepared, trained, evaluated, card, run.folder, memory, show_event)
    return ended(packaging_stage.package_run(*inputs), memory, "package")


@task(name="Register the model", task_run_name=run_messages.register_name, cache_policy=NO_CACHE)
def register_model(
    run: tracked_run.TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> Registered:
    """Log the package and register it."""
    return registration.register(run, model_id, name, package, tags)


@task(
    name="Assign the version's aliases",
    task_run_name=run_messages.assign_aliases_name,
    cache_policy=NO_CACHE,
)
def assign_aliases(config: RunConfig, registered: Registered, folder: Path) -> Promotion | None:
    """Make the version challenger, and champion if the config allows it."""
    return promotion.assign_aliases(registered.reference, config.promotion, folder, display().note)


def ended(
    result: Result, memory: StageMemory, stage: str, what: str = "its result is used again"
) -> Result | State[Result]:
    """Return a computed result unchanged, and a recalled one in the state Cached."""
    if stage not in memory.recalled:
        return result
    source = memory.reused.get(stage)
    words = f"nothing changed since run {source[:8]}: {what}" if source else _OWN
    display().note(words)
    return Completed(name="Cached", message=words, data=result)


def card_facts(
    config: RunConfig,
    data: IngestedData,
    trained: TrainResult,
    metrics: dict[str, MetricEstimate],
    start: StartingPoint | None,
) -> CardFacts:
    """Return the facts for the model card that only the run knows."""
    return CardFacts(
        name=str(config.name),
        images=data.counts,
        metrics=metrics,
        initial_weights=shown(config.model.init) if config.model.init else "",
        license=start.weights.license if start and start.weights else "",
        seen_before=tuple(notes_on_seen(data.seen_before, data.counts)),
        training=run_parts.length(trained),
        commit=provenance.commit()[0][:12],
    )
