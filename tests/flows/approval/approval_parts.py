"""Steps of an approval that tests drive by hand: request, run the flow in this process, look."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.logging.handlers import APILogHandler
from prefect.states import Crashed, Pending

from patchline.flows.approval import approval_flow, requests
from patchline.flows.approval.approval_flow import approve_promotion
from patchline.flows.approval.requests import ApprovalRequest
from patchline.flows.notifications import events
from patchline.pipeline.registry import aliases
from patchline.pipeline.registry.approval_answer import ApprovalAnswer
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.registered_models import ModelReference, VersionSummary, summaries
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.pipeline.registry.made_versions import QUICK, make_version

YES = ApprovalAnswer(decision="approve", who="Ada", reason="looks good")
NO = ApprovalAnswer(decision="reject", who="Ada", reason="blurry")


def versions(name: str, folder: Path, *wrong: range) -> list[ModelReference]:
    """Register versions that are wrong on these images; the first one is champion."""
    return [make_version(name, folder, wrong=images) for images in wrong]


def start(reference: ModelReference, config: PromotionConfig = QUICK) -> ApprovalRequest:
    """Open a request; its flow has not run yet."""
    others = [each for each in requests.open_requests() if each.name == reference.name]
    approval_flow._open(reference, config, others)
    return open_request(reference)


def open_request(reference: ModelReference) -> ApprovalRequest:
    """Return the one open request for a version."""
    version = f"{reference.name}/{reference.version}"
    [found] = [each for each in requests.open_requests() if each.reference == version]
    return found


def carry_on(asked: ApprovalRequest) -> ApprovalRequest:
    """Run a flow run until it ends or suspends, as the runner's process does."""
    with get_client(sync_client=True) as prefect:
        prefect.set_flow_run_state(asked.flow_run_id, Pending())
        flow_run: FlowRun = prefect.read_flow_run(asked.flow_run_id)
    with contextlib.suppress(Pause):
        run_flow(approve_promotion, flow_run=flow_run, return_type="state")
    return requests.refresh(asked)


def asked_about(reference: ModelReference) -> ApprovalRequest:
    """Return a request that waits for its answer."""
    asked = carry_on(start(reference))
    assert asked.waits, asked
    return asked


def kill(asked: ApprovalRequest) -> None:
    """Set the state that the runner reports for a killed process."""
    with get_client(sync_client=True) as prefect:
        prefect.set_flow_run_state(asked.flow_run_id, Pending())
        prefect.set_flow_run_state(asked.flow_run_id, Crashed(message="code -9"))


def champion(name: str) -> str | None:
    """Return the version that is champion."""
    return aliases.alias_of(client(), name, aliases.CHAMPION)


def summary(reference: ModelReference) -> VersionSummary:
    """Return the registry's summary of a version."""
    [model] = summaries(reference.name)
    [version] = [each for each in model.versions if each.version == reference.version]
    return version


def approval_of(reference: ModelReference) -> dict[str, Any]:
    """Return what a version says about its approval."""
    found = summary(reference).approval
    assert found is not None
    return found


def parting_words() -> None:
    """Flush the events and logs of this process before the server stops."""
    events.flush()
    APILogHandler().flush()
