"""The stages of a training run as Prefect tasks: each calls one function of the library.

A stage that an earlier run has done on the same data, with the same settings, code and packages, is
not done again: its task ends in the state Cached, with the run whose result is used.
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
from flows.training import ahead, run_words
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.evaluation import evaluating
from pipeline.evaluation.evaluating import Evaluated
from pipeline.packaging import stage as packaging_stage
from pipeline.packaging.job import Package
from pipeline.packaging.model_card import CardFacts
from pipeline.registry import promotion, registration
from pipeline.registry.promotion import Promotion
from pipeline.registry.registration import Registered
from pipeline.run_memory import stage_keys
from pipeline.run_memory.stage_keys import Ingredients
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.section import Section
from pipeline.tracking import tracked_run
from pipeline.training import launching
from pipeline.training.train_result import TrainResult

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

Result = TypeVar("Result", bound=Section)

_OWN = "done before the interruption"
_FRESH = "; `patchline run --fresh` computes everything anew"


def step(task: Callable[..., Any], *inputs: Any, after: Any) -> Any:
    """Call a task, which may end in the state Cached, and return its result.

    Prefect's graph shows one edge, to the task that returned `after`: with one for every input,
    most of which have come a long way, nobody can read it.
    """
    from prefect.client.schemas.objects import State

    returned = task(*(opaque(value) if value is after else quote(value) for value in inputs))
    return returned.result() if isinstance(returned, State) else returned


@task(
    name="Read the data",
    task_run_name=run_words.read_name,
    cache_policy=NO_CACHE,
    **RETRYING,
)
def read_data(config: RunConfig, workspace: Path) -> IngestedData:
    """List the source, check every image, split."""
    return ingestion.ingest(config, workspace, display().advance)


@task(
    name="Decode the images",
    task_run_name=run_words.decode_name,
    cache_policy=NO_CACHE,
    **RETRYING,
)
def decode_images(
    config: RunConfig, data: IngestedData, memory: StageMemory
) -> PreparedData | State[PreparedData]:
    """Write the prepared store, unless it exists."""
    known = memory.recall("prepare", prepare_ingredients(config, data), PreparedData)
    if known is not None:
        return _ended(known, memory, "prepare", "its images are used again")
    return ingestion.prepare(config, data, memory.workspace, display().advance, fresh=memory.fresh)


def remember_prepared(
    memory: StageMemory, config: RunConfig, data: IngestedData, prepared: PreparedData
) -> None:
    """Keep a record of the prepared store, as soon as there is a run that it belongs to."""
    if "prepare" not in memory.reused:
        made = prepared.model_copy(update={"reused": False})
        memory.remember("prepare", made, prepared.store, prepare_ingredients(config, data))


@task(name="Train the model", task_run_name=run_words.train_name, cache_policy=NO_CACHE)
def train_model(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    run: tracked_run.TrackedRun,
    memory: StageMemory,
) -> TrainResult | State[TrainResult]:
    """Train in a process of its own."""
    follow = ahead.following_stages(show_event)
    trained = launching.train(config, data, prepared, run, memory, follow)
    limit = config.training.time_limit
    what = f"its training (it was limited to {limit}, too) is" if limit else "its training is"
    return _ended(trained, memory, "train", f"{what} used again{_FRESH}")


@task(
    name="Evaluate on the test images", task_run_name=run_words.evaluate_name, cache_policy=NO_CACHE
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
    return _ended(evaluating.evaluate_run(*inputs), memory, "evaluate")


@task(name="Package the model", task_run_name=run_words.package_name, cache_policy=NO_CACHE)
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
    return _ended(packaging_stage.package_run(*inputs), memory, "package")


@task(name="Register the model", task_run_name=run_words.register_name, cache_policy=NO_CACHE)
def register_model(
    run: tracked_run.TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> Registered:
    """Log the package and register it."""
    return registration.register(run, model_id, name, package, tags)


@task(
    name="Give the version its aliases", task_run_name=run_words.welcome_name, cache_policy=NO_CACHE
)
def welcome_version(config: RunConfig, registered: Registered, folder: Path) -> Promotion | None:
    """Make the version challenger, and champion if the config lets it."""
    return promotion.welcome(registered.reference, config.promotion, folder, display().note)


def prepare_ingredients(config: RunConfig, data: IngestedData) -> Ingredients:
    """Return everything that decides the decoded images."""
    sizes = {key: str(getattr(config.data, key)) for key in ("image_size", "channels", "resize")}
    return {
        "data": data.fingerprint,
        **sizes,
        "code": stage_keys.code("pipeline.data.prepared_store"),
        **stage_keys.package_versions(),
    }


def _ended(
    result: Result, memory: StageMemory, stage: str, what: str = "its result is used again"
) -> Result | State[Result]:
    """Return a result that was computed as it is, and one that was recalled in the state Cached."""
    if stage not in memory.recalled:
        return result
    source = memory.reused.get(stage)
    words = f"nothing changed since run {source[:8]}: {what}" if source else _OWN
    display().note(words)
    return Completed(name="Cached", message=words, data=result)
