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

from flows import ahead, run_words
from flows.failures import RETRYING
from flows.progress import display, show_event
from pipeline import stage_keys, tracking
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.evaluation import evaluating
from pipeline.evaluation.evaluating import Evaluated
from pipeline.event_log import Event
from pipeline.registry import packaging, promoting, registering_once
from pipeline.registry.model_card import CardFacts
from pipeline.registry.packaging_job import Package
from pipeline.registry.promoting import Promotion
from pipeline.registry.registering import Registered
from pipeline.section import Section
from pipeline.stage_keys import Ingredients
from pipeline.stage_memory import StageMemory, digest_of, kept
from pipeline.train_result import TrainResult
from pipeline.training import launching
from pipeline.worker_process import earlier_events

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

Result = TypeVar("Result", bound=Section)

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
        return _cached(known, memory, "prepare", "its images are")
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
    run: tracking.TrackedRun,
    memory: StageMemory,
) -> TrainResult | State[TrainResult]:
    """Train in a process of its own."""
    folder = run.folder / launching.FOLDER
    ingredients = launching.ingredients(config, data, prepared)
    begun = bool(earlier_events(folder))  # then it goes on, whatever others have done meanwhile
    known = memory.recall("train", ingredients, TrainResult, folder, own_only=begun)
    if known is not None:
        launching.tell_again(run)
        limit = config.training.time_limit
        timed = f" (it was limited to {limit}, too)" if limit else ""
        return _cached(known, memory, "train", f"its training{timed} is", hint=_FRESH)
    next_stages = ahead.AfterTraining()

    def follow(event: Event) -> None:
        show_event(event)
        next_stages.see(event)

    trained = launching.train(config, data, prepared, run, follow)
    same = launching.ingredients(launching.replayable(config, trained), data, prepared)
    memory.remember("train", trained, folder, ingredients, same)
    return trained


@task(
    name="Evaluate on the test images", task_run_name=run_words.evaluate_name, cache_policy=NO_CACHE
)
def evaluate_model(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    run: tracking.TrackedRun,
    memory: StageMemory,
) -> Evaluated | State[Evaluated]:
    """Predict the test split and write the report."""
    folder = run.folder / "report"
    ingredients = evaluate_ingredients(config, data, prepared, trained)

    def compute() -> Evaluated:
        return evaluating.evaluate_run(config, data, prepared, trained, folder, show_event)

    return _once(memory, "evaluate", ingredients, Evaluated, folder, compute)


@task(name="Package the model", task_run_name=run_words.package_name, cache_policy=NO_CACHE)
def package_model(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    trained: TrainResult,
    evaluated: Evaluated,
    card: CardFacts,
    run: tracking.TrackedRun,
    memory: StageMemory,
) -> Package | State[Package]:
    """Export to ONNX and compare with the trained model."""
    folder, temperature = run.folder / "package", evaluated.report.temperature
    ingredients = {
        **_of_model(config, data, prepared, trained),
        "temperature": repr(temperature),
        "card": card.model_dump_json(),
        "code": stage_keys.code("data", "layers", "evaluation", "metrics", "registry"),
    }

    def compute() -> Package:
        return packaging.package_model(
            trained.best, data, prepared, temperature, folder, show_event, card
        )

    return _once(memory, "package", ingredients, Package, folder, compute)


@task(name="Register the model", task_run_name=run_words.register_name, cache_policy=NO_CACHE)
def register_model(
    run: tracking.TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> Registered:
    """Log the package and register it."""
    return registering_once.register(run, model_id, name, package, tags)


@task(
    name="Give the version its aliases", task_run_name=run_words.welcome_name, cache_policy=NO_CACHE
)
def welcome_version(config: RunConfig, registered: Registered, folder: Path) -> Promotion | None:
    """Make the version challenger, and champion if the config lets it."""
    return promoting.welcome(registered.reference, config.promotion, folder, display().note)


def prepare_ingredients(config: RunConfig, data: IngestedData) -> Ingredients:
    """Return everything that decides the decoded images."""
    sizes = {key: str(getattr(config.data, key)) for key in ("image_size", "channels", "resize")}
    return {
        "data": data.fingerprint,
        **sizes,
        "code": stage_keys.code("data"),
        **stage_keys.package_versions(),
    }


def evaluate_ingredients(
    config: RunConfig, data: IngestedData, prepared: PreparedData, trained: TrainResult
) -> Ingredients:
    """Return everything that decides the report; it shows all settings, so it hangs on all."""
    return {
        **_of_model(config, data, prepared, trained),
        **config.flat(),
        "notes": "\n".join(data.notes),
        "training": trained.model_dump_json(exclude={"best"}),
        "code": stage_keys.code("data", "layers", "evaluation", "metrics"),
    }


def _of_model(
    config: RunConfig, data: IngestedData, prepared: PreparedData, trained: TrainResult
) -> Ingredients:
    files = {file.name: digest_of(file).sha256 for file in kept(trained.best)}
    return {
        "data": data.fingerprint,
        "images": repr(prepared.image),
        **{f"trained {name}": sha256 for name, sha256 in files.items()},
        "device": trained.device,
        **stage_keys.software(config, "model", "patch_embedding"),
    }


def _once(
    memory: StageMemory,
    stage: str,
    ingredients: Ingredients,
    result_class: type[Result],
    folder: Path,
    compute: Callable[[], Result],
) -> Result | State[Result]:
    known = memory.recall(stage, ingredients, result_class, folder)
    if known is not None:
        return _cached(known, memory, stage, "its result is")
    result = compute()
    memory.remember(stage, result, folder, ingredients)
    return result


def _cached(
    result: Result, memory: StageMemory, stage: str, what: str, hint: str = ""
) -> State[Result]:
    """Say that a result is used again, and return it as the task's state."""
    source = memory.reused.get(stage)
    if source:
        words = f"nothing changed since run {source[:8]}: {what} used again"
        display().note(words + hint)
    else:
        words = "done before the interruption"
        display().note(words)
    return Completed(name="Cached", message=words, data=result)
