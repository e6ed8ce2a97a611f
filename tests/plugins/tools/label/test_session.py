"""What several pages may hold at the same time, and whose answers each takes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.data.labels.answers.answer import SOMEBODY
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
from patchline.plugins.tools.label.pool import Pool
from patchline.plugins.tools.label.ranking import ImageOrder
from patchline.plugins.tools.label.server.advisor import Advisor
from patchline.plugins.tools.label.session import Person, Session, TakenError

ONE, OTHER, THIRD = "window-00001", "window-00002", "window-00003"


def _session(folder: Path, images: int) -> Session:
    for number in range(images):
        (folder / f"{number:03d}.png").touch()  # nobody looks at them
    pool, answers = Pool(folder, folder), AnswersTable(folder / "labels.csv")
    answers.add_classes(("rose", "tulip"))
    order = ImageOrder(list(pool.images), 0)
    return Session(pool, answers, order, Advisor(pool, answers, order, None))


def _answered(session: Session, client: str, name: str, label: str) -> str:
    """Answer the next image, and return its key."""
    [offer] = session.next(Person(client, name), [], 1)
    session.answer(Person(client, name), [offer.key], "label", [label], saw_suggestion=False)
    return offer.key


def _undone(session: Session, client: str, name: str) -> list[str]:
    return [offer.key for offer in session.undo(Person(client, name))[0]]


def test_a_page_takes_back_its_own_answers_whatever_the_names_are(tmp_path: Path) -> None:
    """Nobody has typed a name; a page that has answered nothing takes nothing back."""
    session = _session(tmp_path, 9)
    first = _answered(session, ONE, SOMEBODY, "rose")
    second = _answered(session, OTHER, SOMEBODY, "tulip")
    assert _undone(session, THIRD, SOMEBODY) == []
    assert _undone(session, ONE, SOMEBODY) == [first]
    assert _undone(session, ONE, SOMEBODY) == []
    assert _undone(session, OTHER, "bob, who has typed his name") == [second]


def test_the_newest_answer_of_a_person_is_taken_back_on_whatever_page_it_was_given(
    tmp_path: Path,
) -> None:
    """The sentence says which; answers of others stay, also if they are newer."""
    session = _session(tmp_path, 9)
    older = _answered(session, ONE, "ada", "rose")
    newer = _answered(session, OTHER, "ada", "tulip")
    _answered(session, THIRD, "bob", "rose")
    offers, words = session.undo(Person(ONE, "ada"))
    assert [offer.key for offer in offers] == [newer]
    assert words == f"The answer tulip to {session.pool.images[newer].name}"
    assert _undone(session, OTHER, "ada") == [older]


def test_an_answer_to_an_image_that_another_page_has_answered_is_refused(tmp_path: Path) -> None:
    """Its lease ended while a computer slept; that both have no name makes no difference."""
    session = _session(tmp_path, 1)
    sleeper, other = Person(ONE, SOMEBODY), Person(OTHER, SOMEBODY)
    session.next(sleeper, [], 1)
    session.next(sleeper, [], 0)  # no longer held
    key = _answered(session, OTHER, SOMEBODY, "rose")
    with pytest.raises(TakenError, match="Somebody else has answered"):
        session.answer(sleeper, [key], "label", ["tulip"], saw_suggestion=False)
    session.answer(other, [key], "label", ["rose"], saw_suggestion=False)  # sent again
