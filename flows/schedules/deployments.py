"""Patchline's deployments in Prefect, and their runs: what a time, an event or a person may start.

The functions here expect that Prefect's settings name a server; `prefect_session.connect` takes
care of that. Labels identify a deployment: its kind, its folder (`folder_labels`) and its name.

A worker may start a run at any moment, so each is read again before it is cancelled. A retried flow
run is the same one, so it keeps its page, its answers and its MLflow run.

A run is missed if it was due while the machine slept or the servers were down. Of all missed runs
of a deployment, one is started.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    DeploymentCreate,
    DeploymentScheduleCreate,
    GlobalConcurrencyLimitUpdate,
)
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags, FlowRunFilter
from prefect.client.schemas.objects import (
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    FlowRun,
    State,
    StateType,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events import DeploymentTriggerTypes
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Scheduled
from prefect.utilities.urls import url_for

from patchline.flows.prefect_api import folder_labels
from patchline.flows.prefect_api.failures import was_interrupted
from patchline.flows.prefect_api.prefect_client import all_pages, flow_runs, open_client
from patchline.flows.schedules import work_pools
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE
from patchline.pipeline.workspace import chosen

TAG = "patchline"
KIND = "patchline.kind"
NAME = "patchline.name"
ON_EVENT = "patchline.on_"
"""Begins the label of a schedule that an event starts: `patchline.on_drift` names the model whose
images have drifted."""
WATCH_FOLDER = "patchline.watch_folder"
QUIET_SECONDS = "patchline.quiet_seconds"
"""Label of a watch: how long its folder must stay unchanged, if the user has set that."""
NAMED_KINDS = frozenset({"schedule", "watch"})
"""The kinds that a person has named and that `patchline schedule` manages."""

_PREPARING_SECONDS = 600
"""How long a run may take to start before another one may take its concurrency slot."""

Labels = Mapping[str, str]


def deploy(
    flow: Flow[..., Any],
    name: str,
    *,
    parameters: Mapping[str, Any],
    schedule: SCHEDULE_TYPES | None = None,
    triggers: Sequence[DeploymentTriggerTypes] = (),
    labels: Labels,
    description: str,
    concurrency: Literal["cancel_new", "enqueue"] = "cancel_new",
    paused: bool = False,
    work_pool: str | None = None,
) -> UUID:
    """Create a deployment in this folder, or update the one with this name; return its id.

    Only one of its runs is active at a time. Runs that are due with the old settings but have not
    started are cancelled. The form in the Prefect UI comes from the flow's signature.

    Args:
        flow: a flow at the top level of an importable module.
        name: a name that is unique in this folder among deployments of the same kind.
        parameters: the flow's parameters, as JSON can hold them.
        schedule: the times at which it runs; None if it is not started by time.
        triggers: events that start it.
        labels: the deployment's labels, at least `patchline.kind`; the folder and the name are
            added.
        description: text for the deployment's page, in Markdown.
        concurrency: what happens to a run that is due while another is active.
        paused: whether it starts no runs by itself until it is resumed.
        work_pool: the work pool whose workers execute its runs; without it, the runner of this
            folder.

    Raises:
        ConfigError: if a deployment of another kind has this name.
        OrchestrationError: if the server refuses it.
        StorageError: if the folder may not be written.
    """
    folder = folder_labels.with_id(Path())
    pool = work_pool or work_pools.of_folder()
    work_pools.ensure(pool)
    # The workers of a team's pool have the workspace under a path of their own.
    place = {} if work_pool else {"working_dir": folder[folder_labels.FOLDER]}
    with open_client() as client:
        flow_id = client.create_flow_from_name(flow.name)
        existing = _existing(client, name, labels[KIND])
        request = DeploymentCreate(
            name=existing.name if existing else _free_name(client, flow.name, name, folder),
            flow_id=flow_id,
            paused=paused,
            schedules=[DeploymentScheduleCreate(schedule=schedule)] if schedule else [],
            concurrency_limit=1,
            concurrency_options=ConcurrencyOptions(
                collision_strategy=ConcurrencyLimitStrategy(concurrency.upper()),
                grace_period_seconds=_PREPARING_SECONDS,
            ),
            enforce_parameter_schema=True,
            parameter_openapi_schema=flow.parameters.model_dump(exclude_none=True),
            parameters=dict(parameters),
            tags=[TAG],
            labels={**labels, **folder, NAME: name},
            work_pool_name=pool,
            description=description,
            entrypoint=f"{flow.fn.__module__}.{flow.fn.__name__}",
            job_variables={**place, "env": _environment()},
        )
        content = request.model_dump(mode="json", exclude_unset=True)
        answer = client.request("POST", "/deployments/", json=content).json()
        deployment_id = UUID(answer["id"])
        if existing and existing.id != deployment_id:
            _remove(client, existing.id)
        _cancel_due(client, deployment_id, "The schedule was changed.")
        client.delete_resource_owned_automations(_resource(deployment_id))
        for trigger in triggers:
            trigger.set_deployment_id(deployment_id)
            client.create_automation(trigger.as_automation())
    return deployment_id


def deployments(kind: str | None = None) -> list[DeploymentResponse]:
    """Return the deployments of this folder, of one kind or all, sorted by name.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        own = [each for each in _read_all(client) if folder_labels.are_of(each.labels, Path())]
    return sorted((each for each in own if kind in (None, each.labels.get(KIND))), key=name_of)


def of_other_workspaces() -> list[str]:
    """Return the names of schedules of other workspaces that have the path of this folder.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    path = folder_labels.of(Path())[folder_labels.FOLDER]
    with open_client() as client:
        here = [
            each
            for each in _read_all(client)
            if each.labels[KIND] in NAMED_KINDS and each.labels.get(folder_labels.FOLDER) == path
        ]
    return sorted(name_of(each) for each in here if not folder_labels.are_of(each.labels, Path()))


def name_of(deployment: DeploymentResponse) -> str:
    """Return the name that the person gave; the name in Prefect may have a suffix."""
    return str(deployment.labels.get(NAME, deployment.name))


def start(
    deployment_id: UUID,
    *,
    parameters: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    name: str | None = None,
) -> UUID:
    """Start a run of a deployment now; return the flow run's id.

    Args:
        deployment_id: the deployment.
        parameters: parameters of the flow, which override those of the deployment.
        idempotency_key: a second call with the same key returns the first run's id.
        name: the name of the flow run; by default Prefect generates one.

    Raises:
        OrchestrationError: if there is no such deployment, or it refuses the parameters.
    """
    with open_client() as client:
        return client.create_flow_run_from_deployment(
            deployment_id,
            parameters=dict(parameters or {}),
            idempotency_key=idempotency_key,
            name=name,
        ).id


def remove(deployment_id: UUID) -> None:
    """Remove a deployment and its triggers; an active run continues.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        _remove(client, deployment_id)


def set_paused(deployment: DeploymentResponse, *, paused: bool) -> None:
    """Pause or resume a deployment and its triggers; missed runs are not caught up on.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        if paused:
            client.pause_deployment(deployment.id)
            _cancel_due(client, deployment.id, "The schedule was paused.")
        else:
            client.resume_deployment(deployment.id)
            for each in deployment.schedules:  # the Prefect UI pauses these
                client.update_deployment_schedule(deployment.id, each.id, active=True)
        for automation in client.read_resource_related_automations(_resource(deployment.id)):
            change = client.pause_automation if paused else client.resume_automation
            change(automation.id)


def is_paused(deployment: DeploymentResponse) -> bool:
    """Return whether a deployment is paused: as a whole, or all its times in the Prefect UI."""
    times = deployment.schedules
    return deployment.paused or (bool(times) and not any(each.active for each in times))


def active_run(deployment_id: UUID) -> FlowRun | None:
    """Return a run of a deployment that is active or about to start.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        return next(iter(active(client, deployment_id)), None)


def last_run(deployment_id: UUID) -> FlowRun | None:
    """Return the newest run of a deployment that has started or ended.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        return newest(client, deployment_id)


def page(what: Literal["deployment", "flow-run"], of: UUID) -> str:
    """Return the URL of a page in the Prefect UI."""
    return str(url_for(what, obj_id=of))


def runner_is_up() -> bool:
    """Return whether the runner of this folder is polling for runs.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    return work_pools.is_served(work_pools.of_folder())


def _read_all(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return Patchline's deployments of all folders on the server."""
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    pages = all_pages(
        lambda limit, offset: client.read_deployments(
            deployment_filter=ours, limit=limit, offset=offset
        )
    )
    return [each for each in pages if KIND in each.labels]


def _existing(client: SyncPrefectClient, name: str, kind: str) -> DeploymentResponse | None:
    """Return this folder's deployment with that name.

    Raises:
        ConfigError: if it is of another kind that the same commands manage.
    """
    for each in _read_all(client):
        if each.labels.get(NAME) != name or not folder_labels.are_of(each.labels, Path()):
            continue
        if each.labels[KIND] == kind:
            return each
        if {each.labels[KIND], kind} <= NAMED_KINDS:
            raise ConfigError(
                f"The name '{name}' is already used by a {each.labels[KIND]}. Choose another name, "
                f"or remove it with `patchline schedule remove {name}`."
            )
    return None


def _free_name(client: SyncPrefectClient, flow_name: str, name: str, folder: Labels) -> str:
    """Return a name that is free on the server, which other folders may share."""
    try:
        client.read_deployment_by_name(f"{flow_name}/{name}")
    except ObjectNotFound:
        return name
    place = "".join(folder.values()).encode()
    return f"{name}-{hashlib.sha256(place).hexdigest()[:6]}"


def _environment() -> dict[str, str]:
    """Return a run's variables; a user's own folder `pipeline` or `flows` is not imported.

    The runner may have been started without the address of a shared workspace, which is in no file
    of the folder before something was computed in it.

    Raises:
        ConfigError: if that workspace cannot be used.
        StorageError: if its store does not answer.
    """
    shared, files = chosen.address(), os.environ.get(FILES_VARIABLE)
    chosen.find_shared_files()  # so that one that cannot be used is seen now
    return {
        "PYTHONSAFEPATH": "1",
        **({FILES_VARIABLE: files} if files else {}),
        **({chosen.VARIABLE: str(shared)} if shared else {}),
    }


def _resource(deployment_id: UUID) -> str:
    return f"prefect.deployment.{deployment_id}"


def _cancel_due(client: SyncPrefectClient, deployment_id: UUID, reason: str) -> None:
    for flow_run in due(client, [deployment_id]):
        cancel(client, flow_run, reason)


def _remove(client: SyncPrefectClient, deployment_id: UUID) -> None:
    client.delete_resource_owned_automations(_resource(deployment_id))
    client.delete_deployment(deployment_id)


_WAITING = ("Scheduled", "Late", "AwaitingConcurrencySlot")
_ACTIVE = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_STARTED = set(StateType) - {StateType.SCHEDULED}
_POSTPONED = dt.timedelta(minutes=1)
"""A run that is due later than this was postponed by a person."""


def due(client: SyncPrefectClient, deployment_ids: Sequence[UUID]) -> list[FlowRun]:
    """Return the runs that a schedule created and that are due but not started, oldest first."""
    filters = {
        **of_deployments(deployment_ids),
        "state": {"name": {"any_": ["Scheduled", "Late"]}},
        "next_scheduled_start_time": {"before_": dt.datetime.now(dt.UTC)},
    }
    runs = flow_runs(client, filters, FlowRunSort.EXPECTED_START_TIME_ASC)
    return [flow_run for flow_run in runs if flow_run.auto_scheduled]


def active(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    """Return the runs that rightly occupy the deployment's concurrency slot."""
    own = of_deployments([deployment_id])
    states: tuple[dict[str, Any], ...] = (
        {"type": {"any_": _ACTIVE}},
        {"name": {"any_": ["AwaitingRetry"]}},
    )
    return [each for state in states for each in flow_runs(client, {**own, "state": state})]


def find_unfinished(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    """Return the runs that are active or wait for their turn, without postponed ones."""
    state = {"type": {"any_": [StateType.SCHEDULED, *_ACTIVE]}}
    soon = dt.datetime.now(dt.UTC) + _POSTPONED

    def is_postponed(flow_run: FlowRun) -> bool:
        start = flow_run.next_scheduled_start_time
        return flow_run.state_name == "Scheduled" and start is not None and start > soon

    runs = flow_runs(client, {**of_deployments([deployment_id]), "state": state})
    return [flow_run for flow_run in runs if not is_postponed(flow_run)]


def newest(
    client: SyncPrefectClient, deployment_id: UUID, without: Collection[StateType] = ()
) -> FlowRun | None:
    """Return the newest run that has started or ended, in none of the states `without`."""
    state = {"type": {"any_": sorted(_STARTED.difference(without))}}
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {**of_deployments([deployment_id]), "state": state}
        ),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=1,
    )
    return runs[0] if runs else None


def cancel(client: SyncPrefectClient, flow_run: FlowRun, reason: str) -> None:
    """Cancel a run, unless a worker has started it in the meantime."""
    if client.read_flow_run(flow_run.id).state_name in _WAITING:
        client.set_flow_run_state(flow_run.id, Cancelled(message=reason))


def of_deployments(deployment_ids: Sequence[UUID]) -> dict[str, Any]:
    """Return the part of a filter that selects the runs of these deployments."""
    return {"deployment_id": {"any_": list(deployment_ids)}}


MAX_FAILURES = 4
"""After this many failures a flow run is not retried."""
LOOK_BACK = dt.timedelta(days=7)
"""Flow runs that ended earlier are not retried."""
_FIRST_PAUSE_SECONDS, _PAUSE_FACTOR = 5.0, 6.0

IsRetryable = Callable[[State[Any]], bool]
"""Whether a run that ended in this state should be retried."""


def retry_when_due(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    is_retryable: IsRetryable,
    now: dt.datetime | None = None,
) -> bool:
    """Restart an ended flow run once its pause is over.

    Args:
        client: a client of the Prefect server.
        flow_run_id: the flow run.
        is_retryable: tells which final states are retried.
        now: the current time, if not this machine's.

    Returns:
        Whether nothing is left to do: it ended otherwise, too often or too long ago.
    """
    state = client.read_flow_run(flow_run_id).state
    if state is None or not state.is_final():
        return False
    age = (now or dt.datetime.now(dt.UTC)) - state.timestamp
    failed = count_failures(client, flow_run_id, is_retryable)
    if not is_retryable(state) or failed >= MAX_FAILURES or age > LOOK_BACK:
        return True
    if age.total_seconds() >= _FIRST_PAUSE_SECONDS * _PAUSE_FACTOR ** (failed - 1):
        message = f"Resuming after failure {failed} ({state.name}): {state.message}"
        client.set_flow_run_state(flow_run_id, Scheduled(name="Resuming", message=message))
    return False


def count_failures(client: SyncPrefectClient, flow_run_id: UUID, is_retryable: IsRetryable) -> int:
    """Return how often a flow run ended in a retryable state."""
    return sum(map(is_retryable, client.read_flow_run_states(flow_run_id)))


_RESUMABLE = dt.timedelta(days=1)
"""An interrupted run is resumed this long after its end; later, the next run replaces it."""
_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


def drop_missed() -> None:
    """Cancel all but one of the missed runs of each deployment in this folder.

    Also release the concurrency slots of runs that ended without doing so, because such a slot
    would keep every later run from starting.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    all_deployments = deployments()  # before the runs, so that every slot's run is seen
    with open_client() as client:
        missed: dict[UUID, list[FlowRun]] = {}
        scheduled = [each.id for each in all_deployments if each.schedules]
        for flow_run in due(client, scheduled):
            if flow_run.deployment_id:
                missed.setdefault(flow_run.deployment_id, []).append(flow_run)
        for deployment_id, runs in missed.items():
            _drop(client, deployment_id, runs)
        for each in all_deployments:
            _release_slot(client, each)


def continue_interrupted() -> None:
    """Resume interrupted runs of schedules, unless a later run has started or is due.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    running = deployments("schedule")
    ids = [each.id for each in running if not is_paused(each)]
    if not ids:
        return
    filters = {
        **of_deployments(ids),
        "state": {"type": {"any_": [StateType.CRASHED, StateType.FAILED]}},
        "end_time": {"after_": dt.datetime.now(dt.UTC) - _RESUMABLE},
    }
    with open_client() as client:
        for flow_run in flow_runs(client, filters):
            if flow_run.state and was_interrupted(flow_run.state) and _is_last(client, flow_run):
                retry_when_due(client, flow_run.id, was_interrupted)


def _drop(client: SyncPrefectClient, deployment_id: UUID, missed: list[FlowRun]) -> None:
    """Cancel all but the newest, and the newest too if a run was started after it was due."""
    newest = missed[-1]
    started = _find_started_since(client, deployment_id, newest)
    replacement = started or newest
    for flow_run in missed if started else missed[:-1]:
        cancel(
            client,
            flow_run,
            f"Missed: due at {_format_due_time(flow_run)}, when the machine was asleep or no "
            f"worker was free; replaced by the run due at {_format_due_time(replacement)}.",
        )


def _find_started_since(
    client: SyncPrefectClient, deployment_id: UUID, missed: FlowRun
) -> FlowRun | None:
    """Return a scheduled run that was started when the missed run was already due."""
    due = _due(missed)
    own = of_deployments([deployment_id])
    began = flow_runs(client, {**own, "start_time": {"after_": due}})
    later_runs = [
        # Prefect sets the start time of a run that was cancelled before it began, too.
        *(run for run in began if run.run_count),
        *flow_runs(client, {**own, "state": {"type": {"any_": [StateType.PENDING]}}}),
    ]
    return next((each for each in later_runs if each.auto_scheduled and _since(each) >= due), None)


def _release_slot(client: SyncPrefectClient, deployment: DeploymentResponse) -> None:
    """Release the slot of a run that is gone: a killed server forgets which run holds it."""
    limit = deployment.global_concurrency_limit
    if limit and limit.active_slots and not active(client, deployment.id):
        client.update_global_concurrency_limit(
            limit.name, GlobalConcurrencyLimitUpdate(active_slots=0)
        )


def _is_last(client: SyncPrefectClient, flow_run: FlowRun) -> bool:
    """Return whether no later run of the deployment has started or is due."""
    deployment_id = flow_run.deployment_id
    if deployment_id is None or due(client, [deployment_id]):
        return False
    last = newest(client, deployment_id, without=[StateType.CANCELLED])
    return last is not None and last.id == flow_run.id


def _due(flow_run: FlowRun) -> dt.datetime:
    return flow_run.expected_start_time or _EPOCH


def _since(flow_run: FlowRun) -> dt.datetime:
    """Return when a run started, or when it entered its state if it has not started."""
    if flow_run.start_time:
        return flow_run.start_time
    return flow_run.state.timestamp if flow_run.state else _EPOCH


def _format_due_time(flow_run: FlowRun) -> str:
    """Return when a run was due, in this machine's time zone."""
    return f"{_due(flow_run).astimezone():%Y-%m-%d %H:%M:%S}"
