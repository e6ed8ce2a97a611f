"""The command `patchline schedule`: create, list, pause, resume, remove, run-now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter
from pydantic import BaseModel, Field, create_model

from patchline.flows.commands.switches import (
    Columns,
    Flat,
    Json,
    add_flags,
    dump_given_flags,
    emit,
    terminal_lines,
    without_needless_negatives,
)
from patchline.flows.new_data import watched_folders
from patchline.flows.prefect_session import connect
from patchline.flows.schedules import schedule_times, scheduled_work
from patchline.flows.schedules.scheduled_work import ScheduleOptions
from patchline.pipeline.errors import ConfigError, OrchestrationError, suggest_name
from patchline.pipeline.plugin_system.tools import Tools, tools

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.events import DeploymentEventTrigger

    from patchline.flows.schedules.schedule_times import Times
    from patchline.flows.schedules.scheduled_work import ScheduledWork
    from patchline.plugin_api import ToolEvent

without_needless_negatives(ScheduleOptions)
_OWN_FLAGS = (*ScheduleOptions.model_fields, "json", "data")
"""Flags of `schedule create` that no tool may take."""
ScheduleName = Annotated[str, Parameter(help="Name of the schedule.")]


def build(_: list[str]) -> Callable[..., None]:
    """Return the command `schedule create`, with the flags of the installed tools."""
    chosen: Any = _flags_of_tools()

    def create(
        name: str,
        /,
        *,
        options: Flat[ScheduleOptions] = None,
        as_json: Json = False,
        table: Columns = None,
        settings: Any = None,
    ) -> None:
        """Create or update a schedule that trains, predicts, or does the work of a tool.

        Parameters
        ----------
        name
            Name of the schedule.
        options
            What it does, and when.
        table
            Columns of a table of images for a tool, where they cannot be guessed.
        settings
            Flags of the installed tools.
        """
        scheduled_work.check_name(name)
        options, given = options or ScheduleOptions(), dump_given_flags(settings)
        event = _find_starting_event(given)
        times = _times(options, event)
        work = scheduled_work.read_scheduled_work(
            options,
            [
                (tool, work, given[_field(work.flag)])
                for tool, work in _tools().work()
                if _field(work.flag) in given
            ],
            dump_given_flags(table),
        )
        if event is not None:
            event = event.checked(work)
        _create(name, options, times, work, event, as_json=as_json)

    return add_flags(create, chosen)


def _tools() -> Tools:
    return tools().besides({f"--{each.replace('_', '-')}" for each in _OWN_FLAGS})


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _flags_of_tools() -> type[BaseModel]:
    """Return a class with a field for each flag that a tool adds."""
    flags = {work.flag: work.help for _, work in _tools().work()}
    flags |= {event.flag: event.flag_help for event in _tools().events() if event.flag}
    fields: dict[str, Any] = {
        _field(flag): (str | None, Field(default=None, description=words))
        for flag, words in flags.items()
    }
    return create_model("FlagsOfTools", **fields)


@dataclass(frozen=True)
class _StartingEvent:
    """An event about a model that starts the training of a schedule, in place of a time."""

    event: ToolEvent
    model: str

    @property
    def label(self) -> dict[str, str]:
        """The label of the schedule, by which it is recognised."""
        return {f"patchline.{_field(self.event.flag)}": self.model}

    def checked(self, work: ScheduledWork) -> _StartingEvent:
        """Return it with the name of the registered model.

        Raises:
            ConfigError: if something else than training is to be started.
            ModelReferenceError: if there is no such model.
        """
        from patchline.pipeline.registry.registered_models import resolve

        if work.kind != "train":
            raise ConfigError(
                f"{self.event.flag} {self.model} starts a training run. Add --config FILE.yaml."
            )
        return replace(self, model=resolve(self.model).name)

    def trigger(self, name: str) -> DeploymentEventTrigger:
        """Return the trigger of a schedule: the event about the model, told in this folder."""
        from prefect.events import DeploymentEventTrigger

        from patchline.flows.prefect_api import folder_labels

        about = self.event.resource.replace("NAME", self.model)
        return DeploymentEventTrigger(
            name=f"Patchline {_field(self.event.flag).removeprefix('on_')}: {name}",
            expect={self.event.name},
            match={"prefect.resource.id": about, **folder_labels.with_id(Path())},
        )


def _find_starting_event(given: Mapping[str, str]) -> _StartingEvent | None:
    """Return the event that a flag names."""
    for event in _tools().events():
        if event.flag and _field(event.flag) in given:
            return _StartingEvent(event, given[_field(event.flag)])
    return None


def _times(options: ScheduleOptions, event: _StartingEvent | None) -> Times | None:
    """Return when a schedule runs; None if an event starts it."""
    if event is None:
        return schedule_times.times(options.cron, options.interval, options.timezone)
    for option in ("cron", "interval", "timezone"):
        if getattr(options, option) is not None:
            raise ConfigError(
                f"{event.event.flag} and --{option} are mutually exclusive. Give only one."
            )
    return None


def _create(
    name: str,
    options: ScheduleOptions,
    times: Times | None,
    work: ScheduledWork,
    event: _StartingEvent | None,
    *,
    as_json: bool,
) -> None:
    """Create or update a schedule, and print when it runs next."""
    with connect():
        from patchline.flows.schedules import deployments, schedule_listing, work_pools
        from patchline.flows.schedules.schedule_listing import prefect_schedule

        own_pool = options.work_pool
        pool = work_pools.check_name(own_pool) if own_pool else work_pools.of_folder()
        labels = {deployments.KIND: "schedule", **work.labels}
        parameters = work.parameters
        if event is not None:  # a config of an earlier version may have the number
            least = watched_folders.check_min_new_images(None, options.config)
            parameters = {**parameters, "min_new_images": least}
        ids = {each.id for each in deployments.deployments("schedule")}
        deployment_id = deployments.deploy(
            _flow(work, event),
            name,
            parameters=parameters,
            schedule=prefect_schedule(times) if times else None,
            triggers=[event.trigger(name)] if event else [],
            labels={**labels, **(event.label if event else {})},
            description=schedule_listing.description(work, times, event.label if event else {}),
            paused=options.paused,
            work_pool=options.work_pool,
        )
        made = next(each for each in deployments.deployments() if each.id == deployment_id)
        shown = schedule_listing.summary(made)
        page = deployments.page("deployment", deployment_id)
        hint = "" if work_pools.is_served(pool) else work_pools.explain_unserved(pool)
    updated = deployment_id in ids
    extra = {"id": str(deployment_id), "updated": updated, "page": page}
    emit(
        {**shown.model_dump(mode="json"), **extra},
        f"{'Updated' if updated else 'Created'} schedule '{name}': {shown.what}, {shown.when}.",
        f"Next   {shown.next_words}",
        f"Page   {page}",
        as_json=as_json,
    )
    _note(hint)


def list_schedules(*, as_json: Json = False) -> None:
    """List the schedules and watches: what they do, when they run next, how the last run ended."""
    with connect():
        from patchline.flows.schedules import deployments, schedule_listing

        shown = [schedule_listing.summary(each) for each in _list_by_name().values()]
        others = deployments.of_other_workspaces()
    if others:
        _note(
            f"Not listed: {', '.join(others)}. Another workspace with the path of this folder has "
            "created them, on another machine or before the `.patchline` that is here now. Remove "
            "in the Prefect UI what no machine needs."
        )
    local_time = scheduled_work.local_time
    lines = terminal_lines("schedules.txt.j2", __package__, shown=shown, local_time=local_time)
    schedules = [each.model_dump(mode="json") for each in shown]
    emit({"schedules": schedules}, *lines, as_json=as_json)


def pause(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Pause a schedule; an active run continues."""
    _set_paused(name, paused=True, as_json=as_json)


def resume(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Resume a paused schedule; missed runs are not caught up on."""
    _set_paused(name, paused=False, as_json=as_json)


def _set_paused(name: str, *, paused: bool, as_json: bool) -> None:
    """Pause or resume a schedule; repeating it changes nothing."""
    with connect():
        from patchline.flows.schedules import deployments, schedule_listing

        deployments.set_paused(_find(name), paused=paused)
        shown = schedule_listing.summary(_find(name))
    said = f"Resumed schedule '{name}'. Next run: {shown.next_words}."
    if paused:
        said = f"Paused schedule '{name}'. Resume it with `patchline schedule resume {name}`."
    emit(shown.model_dump(mode="json"), said, as_json=as_json)


def remove(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Remove a schedule; its runs and models are kept."""
    with connect():
        from patchline.flows.schedules import deployments

        deployment = _find(name)
        deployments.remove(deployment.id)
    emit(
        {"removed": name, "id": str(deployment.id)},
        f"Removed schedule '{name}'. Its runs and models are kept.",
        as_json=as_json,
    )


def run_now(name: ScheduleName, /, *, as_json: Json = False) -> None:
    """Start a run of a schedule now, in addition to its scheduled times."""
    with connect():
        from patchline.flows.schedules import deployments, work_pools

        deployment = _find(name)
        if active := deployments.active_run(deployment.id):
            raise OrchestrationError(
                f"Schedule '{name}' already has an active run ({active.id}, see "
                f"{deployments.page('flow-run', active.id)}). Wait for it, or cancel it there."
            )
        run_id = deployments.start(deployment.id)
        page = deployments.page("flow-run", run_id)
        pool = deployment.work_pool_name or work_pools.of_folder()
        hint = "" if work_pools.is_served(pool) else work_pools.explain_unserved(pool)
    emit(
        {"schedule": name, "flow_run_id": str(run_id), "page": page},
        f"Started a run of '{name}'.",
        f"Run    {run_id}",
        f"Page   {page}",
        as_json=as_json,
    )
    _note(hint)


def _note(hint: str) -> None:
    if hint:
        print(hint, file=sys.stderr)


def _flow(work: ScheduledWork, event: _StartingEvent | None) -> Flow[..., Any]:
    if event is not None:
        from patchline.flows.new_data.watch_flow import retrain_when_new

        return retrain_when_new
    if work.of_tool is not None:
        tool, own = work.of_tool
        return cast("Flow[..., Any]", tool.load(own.flow))
    if work.kind == "train":
        from patchline.flows.training.training_flow import training_flow

        return training_flow
    from patchline.flows.schedules.prediction_flow import predict_flow

    return predict_flow


def _list_by_name() -> dict[str, DeploymentResponse]:
    """Return the schedules and watches of this folder by name."""
    from patchline.flows.schedules import deployments

    return {
        deployments.name_of(each): each
        for each in deployments.deployments()
        if each.labels[deployments.KIND] in deployments.NAMED_KINDS
    }


def _find(name: str) -> DeploymentResponse:
    """Return the schedule or watch with that name.

    Raises:
        ConfigError: if there is none, naming the closest match.
    """
    deployments_named = _list_by_name()
    if name not in deployments_named:
        raise _unknown(name, sorted(deployments_named))
    return deployments_named[name]


def _unknown(name: str, names: Sequence[str]) -> ConfigError:
    if not names:
        return ConfigError(
            f"There is no schedule '{name}': this folder has none. Create one with `patchline "
            "schedule create`."
        )
    hint = suggest_name(name, names)
    return ConfigError(f"There is no schedule '{name}'.{hint} Choose from: {', '.join(names)}.")
