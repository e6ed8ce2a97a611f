"""Human approval of a promotion: requested, answered, expired, interrupted."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled

from patchline.flows.approval import approval_form, expiry, opening, requests
from patchline.flows.schedules import deployments
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.registry.approval.answer import Answer, refuse_closed
from patchline.pipeline.registry.history import CHAMPION
from patchline.pipeline.registry.promotion import Request, promote
from patchline.pipeline.registry.registered_models import summaries
from patchline.pipeline.tracking.tracking_store import client
from tests.flows.approval.approval_parts import (
    NO,
    YES,
    asked_about,
    carry_on,
    champion,
    kill,
    parting_words,
    start,
    summary,
    versions,
)
from tests.flows.conftest import Command
from tests.flows.lasting_server import PROOF, lasting_server
from tests.pipeline.registry.made_versions import QUICK, make_version


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path) -> Iterator[Path]:
    """Return a folder that has a store, while a Prefect server runs."""
    folder = tmp_path_factory.mktemp("approval")
    with (
        pytest.MonkeyPatch.context() as patch,
        lasting_server(folder, empty_prefect) as url,  # no runner of another test's is known to it
    ):
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        patch.setenv("PREFECT_API_URL", url)
        client()
        yield folder
        parting_words()


def _post(path: str, content: Any) -> Any:
    """Send what Prefect's page sends."""
    request = urllib.request.Request(
        f"{os.environ['PREFECT_API_URL']}{path}",
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", **PROOF},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def _get(path: str) -> Any:
    request = urllib.request.Request(f"{os.environ['PREFECT_API_URL']}{path}", headers=PROOF)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_the_form_of_prefects_page_promotes(here: Path) -> None:
    """The form shows the metrics; an invalid answer is refused, and a valid one promotes."""
    _, better = versions("roses", here, range(60), range(10))
    asked = asked_about(better)
    note = summary(better).approval
    assert note is not None
    assert (note["state"], note["flow_run_id"]) == ("asked", str(asked.flow_run_id))
    path = f"/flow_runs/{asked.flow_run_id}"
    keyset = _get(path)["state"]["state_details"]["run_input_keyset"]
    words = _get(f"{path}/input/{keyset['description']}")
    assert "Every gate passes (3 of 3)" in words
    assert "+25.0" in words
    schema = _get(f"{path}/input/{keyset['schema']}")
    schema = json.loads(schema) if isinstance(schema, str) else schema
    assert schema["properties"]["decision"]["enum"] == ["approve", "reject"]
    assert schema["required"] == ["decision", "who"]
    for wrong in ({}, {"decision": "perhaps", "who": "Ada"}, {"decision": "approve", "who": ""}):
        assert _post(f"{path}/resume", {"run_input": wrong})["status"] == "REJECT"
    form = {"decision": "approve", "who": "Ada", "reason": "looks\ngood", "force": False}
    assert _post(f"{path}/resume", {"run_input": form})["status"] == "ACCEPT"
    ended = carry_on(asked)
    assert (ended.state, champion("roses")) == ("Promoted", "2")
    assert ended.message.startswith("approved by Ada: looks good; better than version 1")
    [model] = summaries("roses")
    assert model.history[-1].reason == ended.message
    version = summary(better)
    assert version.approval is not None
    assert (version.approval["state"], version.approval["by"]) == ("approved", "Ada")
    assert version.decision is not None
    assert version.decision["promoted"] is True


@pytest.mark.slow
def test_a_rejection_is_recorded_like_a_refusal_by_a_gate(here: Path) -> None:
    """The version records who rejected it and why; the comparison is logged on its run."""
    _, better = versions("lilies", here, range(60), range(10))
    asked = asked_about(better)
    assert approval_form.submit(asked, NO)
    assert not approval_form.submit(asked, YES)
    ended = carry_on(asked)
    assert (ended.state, ended.message) == ("Not promoted: rejected", "rejected by Ada: blurry")
    assert champion("lilies") == "1"
    decision = summary(better).decision
    assert decision is not None
    assert (decision["promoted"], decision["reason"]) == (False, "rejected by Ada: blurry")
    run_id = summary(better).run_id
    [place] = [item.path for item in client().list_artifacts(run_id, "promotion")]
    files = {Path(item.path).name for item in client().list_artifacts(run_id, place)}
    assert files == {"comparison.html", "comparison.json", "decision.json"}


@pytest.mark.slow
def test_gates_refuse_what_is_approved_without_force(here: Path) -> None:
    """An approval does not overrule a gate; one with force and a reason does."""
    _, equal = versions("tulips", here, range(60), range(60))
    asked = asked_about(equal)
    assert approval_form.submit(asked, YES)
    ended = carry_on(asked)
    assert (ended.state, champion("tulips")) == ("Not promoted: a gate failed", "1")
    assert ended.message.startswith("of 200 images")
    assert ended.message.endswith("(although approved by Ada: looks good)")
    with pytest.raises(ModelReferenceError, match=r"tulips/2 is closed: approved by Ada"):
        refuse_closed(equal)
    again = asked_about(equal)
    assert again.flow_run_id != asked.flow_run_id
    forced = Answer(decision="approve", who="Ada", reason="half the size", force=True)
    assert approval_form.submit(again, forced)
    assert (carry_on(again).state, champion("tulips")) == ("Promoted", "2")
    [model] = summaries("tulips")
    assert model.history[-1].action == "forced"
    assert "approved by Ada: half the size" in model.history[-1].reason


@pytest.mark.slow
def test_approval_is_requested_again_if_the_champion_changed(here: Path) -> None:
    """An approval holds against one champion, a rejection against any."""
    first, second, third = versions("asters", here, range(60), range(40), range(10))
    asked = asked_about(third)
    promote(Request(second, QUICK), here / "by_hand")
    assert approval_form.submit(asked, YES)
    again = carry_on(asked)
    assert (again.waits, champion("asters")) == (True, second.version)
    assert approval_form.submit(again, NO)
    assert carry_on(again).state == "Not promoted: rejected"
    assert champion("asters") == second.version != first.version


@pytest.mark.slow
def test_an_overdue_request_is_refused(here: Path) -> None:
    """Only overdue ones, by the clock, whether or not anything was running."""
    _, better = versions("irises", here, range(60), range(10))
    _, other = versions("poppies", here, range(60), range(10))
    waiting = asked_about(other)
    overdue = asked_about(better, QUICK.model_copy(update={"approval_hours": 1e-6}))
    expiry.expire_overdue()
    assert requests.refreshed(waiting).waits
    ended = carry_on(overdue)
    assert (ended.state, champion("irises")) == ("Not promoted: no answer in time", "1")
    assert ended.message == "nobody answered within 1e-06 hours"
    approval = summary(better).approval
    assert approval is not None
    assert approval["state"] == "expired"
    assert approval_form.submit(waiting, NO)


@pytest.mark.slow
def test_a_request_cancelled_in_prefect_is_closed(here: Path) -> None:
    """The version records it, and approval can be requested again."""
    _, better = versions("dahlias", here, range(60), range(10))
    asked = asked_about(better)
    with get_client(sync_client=True) as prefect:
        prefect.set_flow_run_state(asked.flow_run_id, Cancelled())
    expiry.expire_overdue()
    approval = summary(better).approval
    assert approval is not None
    assert approval["state"] == "cancelled"
    again = asked_about(better)
    assert again.flow_run_id != asked.flow_run_id
    expiry.expire_overdue()
    assert (summary(better).approval or {})["state"] == "asked"
    assert approval_form.submit(again, NO)


@pytest.mark.slow
def test_an_answer_survives_the_death_of_the_process(here: Path) -> None:
    """Killed after the answer, and again after the promotion, the flow still ends as it should."""
    _, better = versions("violets", here, range(60), range(10))
    asked = asked_about(better)
    assert approval_form.submit(asked, YES)
    kill(asked)
    expiry.expire_overdue()
    assert requests.refreshed(asked).state == "Crashed"  # not at once
    expiry.retry(requests.refreshed(asked), dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1))
    assert requests.refreshed(asked).state == "Resuming"
    done = Request(better, QUICK, answer=YES, answered_against="1")
    promote(done, here / "killed")  # what the process had done
    ended = carry_on(asked)
    assert (ended.state, champion("violets")) == ("Promoted", "2")
    approval = summary(better).approval
    assert approval is not None
    assert (approval["state"], approval["by"]) == ("approved", "Ada")
    [model] = summaries("violets")
    assert [entry.to_version for entry in model.history if entry.alias == CHAMPION] == ["1", "2"]


@pytest.mark.slow
def test_a_request_killed_while_it_was_opened_can_be_answered(here: Path) -> None:
    """The form that the killed process did not store is restored; the flow asks again."""
    _, better = versions("peonies", here, range(60), range(10))
    asked = asked_about(better)
    with get_client(sync_client=True) as prefect:
        key = approval_form.key_against("1")
        approval_form.clear(prefect, asked.flow_run_id, key)
    assert approval_form.submit(asked, NO)
    assert carry_on(asked).state == "Not promoted: rejected"
    again = asked_about(better)
    kill(again)
    expiry.retry(requests.refreshed(again), dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1))
    again = carry_on(again)
    assert again.waits
    assert approval_form.submit(again, NO)
    assert carry_on(again).state == "Not promoted: rejected"


@pytest.mark.slow
def test_a_newer_version_supersedes_an_older_one(here: Path) -> None:
    """One request per model, for the newest version; requesting twice opens one."""
    _, second, third = versions("daisies", here, range(60), range(40), range(10))
    older = asked_about(second)
    newer = start(third)
    assert start(third).flow_run_id == newer.flow_run_id
    assert carry_on(older).state == "Not promoted: superseded by a newer version"
    assert "the newer version daisies/3 is pending" in str(opening.request_approval(second, QUICK))
    assert approval_form.submit(carry_on(newer), NO)


@pytest.mark.slow
def test_of_two_answers_at_once_one_counts(here: Path) -> None:
    """The answer that is carried out is the one that was reported to count."""
    _, better = versions("dahlias", here, range(60), range(10))
    asked = asked_about(better)
    given = [YES, NO, YES, NO]
    told: dict[int, bool] = {}

    def give(number: int) -> None:
        with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
            told[number] = approval_form.submit(asked, given[number])

    threads = [threading.Thread(target=give, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [counting] = [number for number, counts in told.items() if counts]
    assert carry_on(asked).state == (
        "Promoted" if given[counting] == YES else "Not promoted: rejected"
    )


@pytest.mark.slow
def test_a_deleted_version_closes_the_request_with_a_message(here: Path) -> None:
    """Nothing fails forever if somebody deletes the version or the model meanwhile."""
    _, better = versions("cosmos", here, range(60), range(10))
    asked = asked_about(better)
    client().delete_model_version("cosmos", better.version)
    assert approval_form.submit(asked, YES)
    ended = carry_on(asked)
    assert ended.state == "Not promoted: the version was deleted"
    assert "'cosmos' has no version 2" in ended.message


@pytest.mark.slow
def test_a_request_that_cannot_be_answered_is_an_error(here: Path, run_here: Command) -> None:
    """The message lists pending versions, and how to request approval."""
    _, better = versions("crocuses", here, range(60), range(10))
    asked = asked_about(better)
    code, _, err = run_here("approve", "crocusses/2")
    assert code == 2
    assert "Did you mean 'crocuses'?" in err
    code, _, err = run_here("approve", "crocuses/1")
    assert code == 2
    assert "No approval request is open for 'crocuses/1'" in err
    assert "crocuses/2" in err
    code, out, _ = run_here("promote", "crocuses", "--ask", "--json")
    assert code == 0
    assert json.loads(out)["asked"] is True
    assert (
        "pending approval: run `patchline approve crocuses/2`" in run_here("models", "crocuses")[1]
    )
    assert approval_form.submit(asked, NO)
    code, _, err = run_here("promote", "crocuses", "--ask", "--force", "--reason", "x")
    assert code == 2
    assert "--ask" in err
    assert opening.request_approval(versions("crocuses", here, range(60))[0], QUICK) is not None


def test_no_approval_is_requested_for_a_champion(here: Path) -> None:
    """The first version of a model is champion at once, so no approval is needed."""
    [first] = versions("freesias", here, range(60))
    assert opening.request_approval(first, QUICK) is None
    assert not deployments.runner_is_up()
    second = make_version("freesias", here, wrong=range(10))
    sentence = opening.request_approval(second, QUICK)
    assert sentence is not None
    assert "`patchline up`" in sentence
    assert "`patchline promote freesias --version 2 --ask`" in sentence
