"""A person decides about a promotion: asked, answered, too late, killed in between."""

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

from flows.approval import answer_form, questions
from flows.approval.answer_form import Approval
from flows.commands import approve
from flows.schedules import deployments
from pipeline.errors import ModelReferenceError
from pipeline.registry.history import CHAMPION
from pipeline.registry.promotion import Answer, Request, promote
from pipeline.registry.registered_models import summaries
from pipeline.tracking.tracking_store import client
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
    """The page gets a form and figures, a wrong form is refused, and a right one promotes."""
    _, better = versions("roses", here, range(60), range(10))
    asked = asked_about(better)
    note = summary(better).approval
    assert note is not None
    assert (note["state"], note["flow_run_id"]) == ("asked", str(asked.flow_run_id))
    path = f"/flow_runs/{asked.flow_run_id}"
    keyset = _get(path)["state"]["state_details"]["run_input_keyset"]
    words = _get(f"{path}/input/{keyset['description']}")
    assert "Every gate passes (2 of 2)" in words
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
def test_a_refusal_is_recorded_like_that_of_a_gate(here: Path) -> None:
    """The version says who refused it and why, the evidence lies with its run; once is enough."""
    _, better = versions("lilies", here, range(60), range(10))
    asked = asked_about(better)
    assert questions.answer(asked, NO)
    assert not questions.answer(asked, YES)
    ended = carry_on(asked)
    assert (ended.state, ended.message) == ("Refused", "rejected by Ada: blurry")
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
    assert questions.answer(asked, YES)
    ended = carry_on(asked)
    assert (ended.state, champion("tulips")) == ("Refused: the gates", "1")
    assert ended.message.startswith("of 200 images")
    assert ended.message.endswith("(although approved by Ada: looks good)")
    with pytest.raises(ModelReferenceError, match=r"tulips/2 is closed: it was approved by Ada"):
        approve._refuse_answered(equal)
    again = asked_about(equal)
    assert again.flow_run_id != asked.flow_run_id
    forced = Approval(decision="approve", who="Ada", reason="half the size", force=True)
    assert questions.answer(again, forced)
    assert (carry_on(again).state, champion("tulips")) == ("Promoted", "2")
    [model] = summaries("tulips")
    assert model.history[-1].action == "forced"
    assert "approved by Ada: half the size" in model.history[-1].reason


@pytest.mark.slow
def test_an_approval_is_asked_for_again_when_the_champion_changed(here: Path) -> None:
    """It was given against another champion; a refusal would count against any."""
    first, second, third = versions("asters", here, range(60), range(40), range(10))
    asked = asked_about(third)
    promote(Request(second, QUICK), here / "by_hand")
    assert questions.answer(asked, YES)
    again = carry_on(asked)
    assert (again.waits, champion("asters")) == (True, second.version)
    assert questions.answer(again, NO)
    assert carry_on(again).state == "Refused"
    assert champion("asters") == second.version != first.version


@pytest.mark.slow
def test_what_nobody_answers_in_time_is_refused(here: Path) -> None:
    """Only what is overdue, by the clock, whatever ran meanwhile."""
    _, better = versions("irises", here, range(60), range(10))
    _, other = versions("poppies", here, range(60), range(10))
    waiting = asked_about(other)
    overdue = asked_about(better, QUICK.model_copy(update={"approval_hours": 1e-6}))
    questions.expire_overdue()
    assert questions.look_at(waiting).waits
    ended = carry_on(overdue)
    assert (ended.state, champion("irises")) == ("Refused: nobody answered", "1")
    assert ended.message == "nobody answered within 1e-06 hours"
    approval = summary(better).approval
    assert approval is not None
    assert approval["state"] == "expired"
    assert questions.answer(waiting, NO)


@pytest.mark.slow
def test_a_question_that_is_cancelled_in_prefect_waits_no_longer(here: Path) -> None:
    """The version says so, and the same question can be asked again."""
    _, better = versions("dahlias", here, range(60), range(10))
    asked = asked_about(better)
    with get_client(sync_client=True) as prefect:
        prefect.set_flow_run_state(asked.flow_run_id, Cancelled())
    questions.expire_overdue()
    approval = summary(better).approval
    assert approval is not None
    assert approval["state"] == "cancelled"
    again = asked_about(better)
    assert again.flow_run_id != asked.flow_run_id
    questions.expire_overdue()
    assert (summary(better).approval or {})["state"] == "asked"
    assert questions.answer(again, NO)


@pytest.mark.slow
def test_an_answer_survives_the_death_of_the_process(here: Path) -> None:
    """Killed after the answer, and again after the promotion, the flow goes on and ends right."""
    _, better = versions("violets", here, range(60), range(10))
    asked = asked_about(better)
    assert questions.answer(asked, YES)
    kill(asked)
    questions.expire_overdue()
    assert questions.look_at(asked).state == "Crashed"  # not at once
    questions.go_on(questions.look_at(asked), dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1))
    assert questions.look_at(asked).state == "Resuming"
    said = Answer(approved=True, words=YES.words, champion="1")
    promote(Request(better, QUICK, answer=said), here / "killed")  # what the process had done
    ended = carry_on(asked)
    assert (ended.state, champion("violets")) == ("Promoted", "2")
    approval = summary(better).approval
    assert approval is not None
    assert (approval["state"], approval["by"]) == ("approved", "Ada")
    [model] = summaries("violets")
    assert [entry.to_version for entry in model.history if entry.alias == CHAMPION] == ["1", "2"]


@pytest.mark.slow
def test_a_question_killed_while_it_was_asked_can_be_answered(here: Path) -> None:
    """The form that the killed process did not store is made up for; the flow asks anew."""
    _, better = versions("peonies", here, range(60), range(10))
    asked = asked_about(better)
    with get_client(sync_client=True) as prefect:
        key = answer_form.question_key("1")
        answer_form.forget_question(prefect, asked.flow_run_id, key)
    assert questions.answer(asked, NO)
    assert carry_on(asked).state == "Refused"
    again = asked_about(better)
    kill(again)
    questions.go_on(questions.look_at(again), dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1))
    again = carry_on(again)
    assert again.waits
    assert questions.answer(again, NO)
    assert carry_on(again).state == "Refused"


@pytest.mark.slow
def test_a_newer_version_takes_the_place_of_an_older_one(here: Path) -> None:
    """One question at a time about each model, the newest; asked twice it is one question."""
    _, second, third = versions("daisies", here, range(60), range(40), range(10))
    older = asked_about(second)
    newer = start(third)
    assert start(third).flow_run_id == newer.flow_run_id
    assert carry_on(older).state == "Refused: a newer version waits"
    assert "daisies/3, which is newer, waits" in str(questions.ask(second, QUICK))
    assert questions.answer(carry_on(newer), NO)


@pytest.mark.slow
def test_of_two_answers_at_once_one_counts(here: Path) -> None:
    """What is carried out is what was told to count."""
    _, better = versions("dahlias", here, range(60), range(10))
    asked = asked_about(better)
    given = [YES, NO, YES, NO]
    told: dict[int, bool] = {}

    def give(number: int) -> None:
        with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
            told[number] = questions.answer(asked, given[number])

    threads = [threading.Thread(target=give, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [counting] = [number for number, counts in told.items() if counts]
    assert carry_on(asked).state == ("Promoted" if given[counting] == YES else "Refused")


@pytest.mark.slow
def test_a_version_that_is_gone_ends_the_question_with_a_sentence(here: Path) -> None:
    """Nothing fails for ever when somebody has deleted the version or the model meanwhile."""
    _, better = versions("cosmos", here, range(60), range(10))
    asked = asked_about(better)
    client().delete_model_version("cosmos", better.version)
    assert questions.answer(asked, YES)
    ended = carry_on(asked)
    assert ended.state == "Refused: the version is gone"
    assert "'cosmos' has no version 2" in ended.message


def test_what_cannot_be_answered_is_said(here: Path, run_here: Command) -> None:
    """The sentence lists what waits, and says what to do where nobody can be asked."""
    _, better = versions("crocuses", here, range(60), range(10))
    asked = asked_about(better)
    code, _, err = run_here("approve", "crocusses/2")
    assert code == 2
    assert "Did you mean 'crocuses'?" in err
    code, _, err = run_here("approve", "crocuses/1")
    assert code == 2
    assert "No question about 'crocuses/1'" in err
    assert "crocuses/2" in err
    code, out, _ = run_here("promote", "crocuses", "--ask", "--json")
    assert code == 0
    assert json.loads(out)["asked"] is True
    assert (
        "waits for a person's answer: `patchline approve crocuses/2`"
        in run_here("models", "crocuses")[1]
    )
    assert questions.answer(asked, NO)
    code, _, err = run_here("promote", "crocuses", "--ask", "--force", "--reason", "x")
    assert code == 2
    assert "--ask" in err
    assert questions.ask(versions("crocuses", here, range(60))[0], QUICK) is not None


def test_a_champion_is_not_asked_about(here: Path) -> None:
    """The first version of a model is champion at once, so there is no question."""
    [first] = versions("freesias", here, range(60))
    assert questions.ask(first, QUICK) is None
    assert not deployments.runner_is_up()
    second = make_version("freesias", here, wrong=range(10))
    sentence = questions.ask(second, QUICK)
    assert sentence is not None
    assert "`patchline up`" in sentence
    assert "`patchline promote freesias --version 2 --ask`" in sentence
