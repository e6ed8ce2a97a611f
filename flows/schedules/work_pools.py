"""Work pools: which workers execute the runs of a schedule.

Runs of the pool of a folder are executed by the runner of its `patchline up`. Any other pool
belongs to a team: its runs are executed by `patchline worker` on any machine, or, if the pool has
another type, by Prefect's own workers, such as that of prefect-kubernetes.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import WorkPoolStatus
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from patchline.flows import prefect_session
from patchline.flows.prefect_api import folder_labels, prefect_settings
from patchline.flows.prefect_api.prefect_client import all_pages, open_client
from patchline.pipeline import local_services
from patchline.pipeline.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TYPE = "process"


def of_folder() -> str:
    """Return the pool whose runs the runner of the working directory's servers executes.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    if services := local_services.find_running():
        return services.pool
    if prefect_settings.server_url() and not prefect_session.is_temporary():
        return on_shared_server()
    return local_services.POOL


def on_shared_server() -> str:
    """Return the pool of the working directory on the server that Prefect's settings name.

    Schedules of earlier versions are all in one pool; a folder that has some stays in it. The
    runner of a folder leaves runs of other folders alone.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    in_common = WorkPoolFilter(name=WorkPoolFilterName(any_=[local_services.POOL]))
    with open_client() as client:
        pages = all_pages(
            lambda limit, offset: client.read_deployments(
                work_pool_filter=in_common, limit=limit, offset=offset
            )
        )
        if any(folder_labels.are_of(each.labels, Path()) for each in pages):
            return local_services.POOL
    return local_services.pool_name(Path())


def check_name(pool: str) -> str:
    """Return the name of a team's pool.

    Raises:
        ConfigError: if it may not be one.
    """
    if not _NAME.fullmatch(pool):
        raise ConfigError(
            f"--work-pool {pool!r} is not a name. Use letters, digits, dots, dashes and "
            "underscores, beginning with a letter or a digit."
        )
    if pool.startswith(("prefect", local_services.POOL)):
        raise ConfigError(
            f"--work-pool {pool} is reserved: names that begin with prefect belong to Prefect, "
            f"and with {local_services.POOL} to the runners of `patchline up`. Choose another one."
        )
    return pool


def ensure(pool: str, *, served_here: bool = False) -> None:
    """Create a pool of type process unless it exists.

    Args:
        pool: its name.
        served_here: whether this process serves it.

    Raises:
        ConfigError: if it exists with another type, and is to be served here.
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=pool, type=_TYPE))
        if not served_here:
            return
        kind = client.read_work_pool(pool).type
    if kind != _TYPE:
        raise ConfigError(
            f"The work pool {pool} has the type {kind}; `patchline worker` serves pools of type "
            f"{_TYPE}. Start its worker with `prefect worker start --pool {pool}`."
        )


def is_served(pool: str) -> bool:
    """Return whether a worker of the pool is polling for runs.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with open_client() as client:
        try:
            return client.read_work_pool(pool).status == WorkPoolStatus.READY
        except ObjectNotFound:
            return False


def explain_unserved(pool: str) -> str:
    """Return what to do if no worker serves a pool."""
    if pool == of_folder():
        return "No worker is running: schedules run only while `patchline up` does."
    return (
        f"No worker of the work pool {pool} is running. Start one with `patchline worker "
        f"--work-pool {pool}`."
    )
