"""The commands `patchline up` and `patchline down`."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

from flows.commands.switches import Json, Switch
from flows.progress import display, shown
from flows.services import sign_in_links, starting, stopping
from pipeline import local_login, local_services
from pipeline.errors import OrchestrationError
from pipeline.local_services import Services
from pipeline.redaction import redacted


def up(
    *,
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
    runs_at_once: int = 2,
    as_json: Json = False,
) -> None:
    """Start a Prefect server, an MLflow server and a runner for the schedules of this folder.

    Parameters
    ----------
    prefect_port
        Where Prefect's pages shall be; the next free port if it is taken.
    mlflow_port
        Where MLflow's pages shall be; the next free port if it is taken.
    runs_at_once
        How many scheduled runs may go on at the same time.
    """
    folder = Path.cwd().resolve()
    with shown():
        if local_services.running(folder) is None:
            display().stage("Starting Prefect, MLflow and a runner")
        begun = starting.start(folder, prefect_port, mlflow_port, runs_at_once, display().note)
    services = local_services.running(folder)
    if services is None:
        raise OrchestrationError(
            "The servers have ended again. Look into "
            f"{local_services.logs_folder(folder) / 'supervisor.log'}, and try again."
        )
    for note in (*services.notes, *_versions_apart(services)):
        print(note, file=sys.stderr)
    if as_json:
        print(json.dumps(_as_json(services, already_running=not begun), indent=2))
        return
    if not begun:
        print(f"The servers run already (process {services.pid}).\n")
    print("\n".join(starting.described(services)))
    if services.own:
        print("\nA link signs a browser in, once, within an hour. `patchline up` prints new links.")
    print("\n`patchline down` stops them when the runs that go on are done.")


def down(*, now: Switch = False, as_json: Json = False) -> None:
    """Stop what `patchline up` started, when the runs that go on are done.

    Parameters
    ----------
    now
        Stop the runs too; each can be continued with `patchline run --resume`.
    """
    folder = Path.cwd().resolve()
    services, stopped_runs = _settled(folder), 0
    if services is not None:
        with shown():
            display().stage("Stopping Prefect, MLflow and the runner")
            stopped_runs = stopping.stop(folder, services, now=now, say=display().note)
    if as_json:
        facts = {"stopped": services is not None, "folder": str(folder)}
        print(json.dumps({**facts, "stopped_runs": stopped_runs}, indent=2))
    else:
        print("Nothing runs here." if services is None else "Stopped.")


def _settled(folder: Path) -> Services | None:
    """Return what runs, after whoever starts something at the moment is done with it."""
    services = local_services.running(folder)
    if services is not None or not local_services.services_folder(folder).exists():
        return services
    with starting.one_at_a_time(folder):
        services = local_services.running(folder)
        if services is None:
            stopping.clear(folder)
    return services


def _versions_apart(services: Services) -> list[str]:
    """Return a line if other versions are installed by now than those that run."""
    apart = [
        f"{name} {version} runs, {metadata.version(name)} is installed"
        for name, version in services.versions.items()
        if metadata.version(name) != version
    ]
    hint = "`patchline down` and `patchline up` start the installed ones"
    return [f"{'; '.join(apart)}; {hint}."] if apart else []


def _as_json(services: Services, *, already_running: bool) -> dict[str, object]:
    return {
        "prefect_url": services.prefect_url,
        "mlflow_url": redacted(services.mlflow_url),
        "pid": services.pid,
        "folder": str(services.folder),
        "already_running": already_running,
        "prefect_api_url": services.prefect_api_url,
        "prefect_login_url": redacted(sign_in_links.prefect_link(services)),
        "mlflow_login_url": redacted(sign_in_links.mlflow_link(services)),
        "login_file": str(local_login.login_file(services.folder)) if services.own else None,
        "logs": str(local_services.logs_folder(services.folder)),
        "notes": list(services.notes),
    }
