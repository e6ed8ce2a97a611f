"""Patchline's deployments in Prefect: what may be started by a time, an event or a person.

The functions here expect that Prefect's settings name a server; `prefect_session.connected` sees to
it. A deployment is known by its labels: what kind it is, whose folder, under which name.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    DeploymentCreate,
    DeploymentScheduleCreate,
    DeploymentUpdate,
    WorkPoolCreate,
)
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import (
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    FlowRun,
    WorkPoolStatus,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES
from prefect.events import DeploymentTriggerTypes
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.utilities.urls import url_for

from flows.failures import was_interrupted
from flows.prefect_client import all_pages, asking
from flows.schedules import deployment_runs, second_tries
from pipeline import local_services
from pipeline.errors import ConfigError
from pipeline.plugin_system.plugin_loader import FILES_VARIABLE

POOL = local_services.POOL
"""The work pool whose worker runs the deployments."""

TAG = "patchline"
KIND = "patchline.kind"
FOLDER = "patchline.folder"
NAME = "patchline.name"
WATCH_FOLDER = "patchline.watch_folder"
NAMED_KINDS = frozenset({"schedule", "watch"})
"""What a person has named, and `patchline schedule` lists."""

_MOVED = {
    "flows.training_flow.training_flow": "flows.training.training_flow.training_flow",
    "flows.promotion.approval_flow.approve_promotion": (
        "flows.approval.approval_flow.approve_promotion"
    ),
}
"""Where flows are that deployments of earlier versions name by their old module."""

_PREPARING_SECONDS = 600
"""How long a run may take from its turn to its first step before another may have its place."""

_CONTINUED = dt.timedelta(days=1)
"""How long after its death a killed run goes on; later the next one stands for it."""

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
) -> UUID:
    """Create a deployment of this folder, or update the one of this name; return its id.

    One run of it goes on at a time. What was due with the old settings and has not begun is
    cancelled. The form in Prefect's pages comes from the flow's signature.

    Args:
        flow: a flow at the top of an importable module.
        name: unique in this folder among deployments of the same kind.
        parameters: what the flow is called with, as JSON.
        schedule: when it runs, if by time.
        triggers: what else starts it.
        labels: `patchline.kind` at least; the folder and the name are added.
        description: for the deployment's page, in markdown.
        concurrency: what happens to a run that is due while one goes on.
        paused: whether it starts nothing by itself until it is resumed.

    Raises:
        ConfigError: if the name is that of another kind of deployment.
        OrchestrationError: if the server does not take it.
    """
    folder = str(Path.cwd().resolve())
    with asking() as client:
        _ensure_pool(client)
        flow_id = client.create_flow_from_name(flow.name)
        existing = _existing(client, name, labels[KIND], folder)
        request = DeploymentCreate(
            name=existing.name if existing else _free_name(client, flow.name, name, folder),
            flow_id=flow_id,
            paused=paused,
            schedules=[DeploymentScheduleCreate(schedule=schedule)] if schedule else [],
            concurrency_limit=1,
            concurrency_options=_when_taken(concurrency),
            enforce_parameter_schema=True,
            parameter_openapi_schema=flow.parameters.model_dump(exclude_none=True),
            parameters=dict(parameters),
            tags=[TAG],
            labels={**labels, FOLDER: folder, NAME: name},
            work_pool_name=POOL,
            description=description,
            entrypoint=f"{flow.fn.__module__}.{flow.fn.__name__}",
            job_variables={"working_dir": folder, "env": _environment()},
        )
        deployment_id = _create(client, request)
        if existing and existing.id != deployment_id:
            _remove(client, existing.id)
        deployment_runs.cancel_waiting(client, deployment_id, "The schedule was changed.")
        _set_triggers(client, deployment_id, triggers)
    return deployment_id


def _create(client: SyncPrefectClient, request: DeploymentCreate) -> UUID:
    content = request.model_dump(mode="json", exclude_unset=True)
    return UUID(client.request("POST", "/deployments/", json=content).json()["id"])


def _when_taken(strategy: str) -> ConcurrencyOptions:
    return ConcurrencyOptions(
        collision_strategy=ConcurrencyLimitStrategy(strategy.upper()),
        grace_period_seconds=_PREPARING_SECONDS,
    )


def deployments(kind: str | None = None) -> list[DeploymentResponse]:
    """Return the deployments of this folder, of one kind or all, by name.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    folder = str(Path.cwd().resolve())
    with asking() as client:
        found = [each for each in _read_all(client) if each.labels.get(FOLDER) == folder]
    chosen = [each for each in found if kind in (None, each.labels.get(KIND))]
    return sorted(chosen, key=name_of)


def name_of(deployment: DeploymentResponse) -> str:
    """Return the name that the person gave; the one in Prefect may have an addition."""
    return str(deployment.labels.get(NAME, deployment.name))


def start(
    deployment_id: UUID,
    *,
    parameters: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    name: str | None = None,
) -> UUID:
    """Start a run of a deployment now and return the flow run's id.

    Args:
        deployment_id: the deployment.
        parameters: replace those of the same name.
        idempotency_key: a second call with the same key starts nothing and returns the same id.
        name: what the flow run is called; by default Prefect thinks of something.

    Raises:
        OrchestrationError: if there is no such deployment, or it does not take the parameters.
    """
    with asking() as client:
        return client.create_flow_run_from_deployment(
            deployment_id,
            parameters=dict(parameters or {}),
            idempotency_key=idempotency_key,
            name=name,
        ).id


def remove(deployment_id: UUID) -> None:
    """Remove a deployment with all that would start it; a run that goes on goes on.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        _remove(client, deployment_id)


def set_paused(deployment: DeploymentResponse, *, paused: bool) -> None:
    """Let a deployment start nothing by itself, or go on; what it missed is not made up for.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        if paused:
            client.pause_deployment(deployment.id)
            deployment_runs.cancel_waiting(client, deployment.id, "The schedule was paused.")
        else:
            client.resume_deployment(deployment.id)
            for each in deployment.schedules:  # Prefect's pages pause the schedule itself
                client.update_deployment_schedule(deployment.id, each.id, active=True)
        for automation in client.read_resource_related_automations(_resource(deployment.id)):
            change = client.pause_automation if paused else client.resume_automation
            change(automation.id)


def is_paused(deployment: DeploymentResponse) -> bool:
    """Return whether nothing starts by itself: paused here, or its times in Prefect's pages."""
    times = deployment.schedules
    return deployment.paused or (bool(times) and not any(each.active for each in times))


def follow_moved_flows() -> None:
    """Point the deployments of this folder that an earlier version made to where their flows are.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    found = deployments()
    with asking() as client:
        for each in found:
            if moved := _MOVED.get(each.entrypoint or ""):
                client.update_deployment(each.id, DeploymentUpdate(entrypoint=moved))


def drop_missed() -> None:
    """Cancel the runs of this folder that were missed, but for one of each deployment.

    When a laptop wakes up, or the servers come back, all runs that were due in between are due at
    once. Also gives back the place of a run that ended without doing so, which would keep every
    later run from starting.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    found = deployments()  # before the runs: a place that is taken in between has its run there
    with asking() as client:
        deployment_runs.drop_missed(client, [each.id for each in found if each.schedules])
        for each in found:
            deployment_runs.free_place(client, each)


def continue_interrupted() -> None:
    """Let the runs of schedules go on that were interrupted, unless a later one has its turn.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    ids = [each.id for each in deployments("schedule") if not is_paused(each)]
    with asking() as client:
        since = dt.datetime.now(dt.UTC) - _CONTINUED
        for flow_run in deployment_runs.interrupted(client, ids, since):
            second_tries.go_on(client, flow_run.id, was_interrupted)


def going_on(deployment_id: UUID) -> FlowRun | None:
    """Return a run of a deployment that goes on, or is about to.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        return next(iter(deployment_runs.holders(client, deployment_id)), None)


def last_run(deployment_id: UUID) -> FlowRun | None:
    """Return the newest run of a deployment whose turn has come, whatever became of it.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        return deployment_runs.last(client, deployment_id)


def page(what: Literal["deployment", "flow-run"], of: UUID) -> str:
    """Return the address of a page in Prefect."""
    return str(url_for(what, obj_id=of))


def runner_is_up() -> bool:
    """Return whether a worker asks for runs at present.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        try:
            return client.read_work_pool(POOL).status == WorkPoolStatus.READY
        except ObjectNotFound:
            return False


def _read_all(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return all deployments of Patchline on the server, whatever their folder."""
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    found = all_pages(
        lambda limit, offset: client.read_deployments(
            deployment_filter=ours, limit=limit, offset=offset
        )
    )
    return [each for each in found if KIND in each.labels]


def _existing(
    client: SyncPrefectClient, name: str, kind: str, folder: str
) -> DeploymentResponse | None:
    """Return this folder's deployment of that name.

    Raises:
        ConfigError: if it is of another kind that the same commands deal with.
    """
    wanted = {NAME: name, FOLDER: folder}
    for each in _read_all(client):
        if not wanted.items() <= each.labels.items():
            continue
        if each.labels[KIND] == kind:
            return each
        if {each.labels[KIND], kind} <= NAMED_KINDS:
            raise ConfigError(
                f"The name '{name}' is that of a {each.labels[KIND]} already. Choose another one, "
                f"or remove that with `patchline schedule remove {name}`."
            )
    return None


def _free_name(client: SyncPrefectClient, flow_name: str, name: str, folder: str) -> str:
    """Return a name that no other deployment of the flow on the server has.

    Another folder may use the same server, and so may Prefect's own tools.
    """
    try:
        client.read_deployment_by_name(f"{flow_name}/{name}")
    except ObjectNotFound:
        return name
    return f"{name}-{hashlib.sha256(folder.encode()).hexdigest()[:6]}"


def _ensure_pool(client: SyncPrefectClient) -> None:
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        try:
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        except ObjectAlreadyExists:
            return  # another process was faster


def _environment() -> dict[str, str]:
    """Return what a run needs beside the runner's own environment.

    A folder `pipeline` or `flows` of the user's must not be taken for the package of that name.
    """
    files = os.environ.get(FILES_VARIABLE)
    return {"PYTHONSAFEPATH": "1", **({FILES_VARIABLE: files} if files else {})}


def _resource(deployment_id: UUID) -> str:
    return f"prefect.deployment.{deployment_id}"


def _set_triggers(
    client: SyncPrefectClient, deployment_id: UUID, triggers: Sequence[DeploymentTriggerTypes]
) -> None:
    client.delete_resource_owned_automations(_resource(deployment_id))
    for trigger in triggers:
        trigger.set_deployment_id(deployment_id)
        client.create_automation(trigger.as_automation())


def _remove(client: SyncPrefectClient, deployment_id: UUID) -> None:
    client.delete_resource_owned_automations(_resource(deployment_id))
    client.delete_deployment(deployment_id)
