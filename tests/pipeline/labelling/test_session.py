"""What several pages may hold at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchline.pipeline.labelling.answers_table import AnswersTable
from patchline.pipeline.labelling.image_order import ImageOrder
from patchline.pipeline.labelling.leases import MOST_EACH, MOST_IMAGES, MOST_TOGETHER
from patchline.pipeline.labelling.pool import Pool
from patchline.pipeline.labelling.server.advisor import Advisor
from patchline.pipeline.labelling.server.application import ImageRequest
from patchline.pipeline.labelling.session import Offer, Person, Session

ONE, OTHER = "window-00001", "window-00002"


class AllAlike(Advisor):
    """Every image is a near duplicate of every other one."""

    def together(self, key: str) -> Sequence[str]:
        """Return all others."""
        return [other for other in self._pool.images if other != key]


def _session(folder: Path, images: int, advisor: type[Advisor] = Advisor) -> Session:
    for number in range(images):
        (folder / f"{number:03d}.png").touch()  # nobody looks at them
    pool, answers = Pool(folder, folder), AnswersTable(folder / "labels.csv")
    answers.add_classes(("rose", "tulip"))
    order = ImageOrder(list(pool.images), 0)
    return Session(pool, answers, order, advisor(pool, answers, order, None))


def _held(offers: Sequence[Offer]) -> list[str]:
    return [key for offer in offers for key in (offer.key, *offer.together)]


def test_a_page_may_say_that_it_holds_whatever_it_was_given(tmp_path: Path) -> None:
    """Near duplicates count, and what a page holds is given to nobody else."""
    session = _session(tmp_path, 300, AllAlike)
    page, other = Person(ONE, "ada"), Person(OTHER, "bob")
    screen: list[Offer] = []
    while offers := session.next(page, _held(screen), MOST_IMAGES):
        screen += offers
    held = _held(screen)
    assert len(screen[0].together) == MOST_TOGETHER
    assert len(set(held)) == len(held) == MOST_EACH
    asked = ImageRequest(client=ONE, holding=tuple(held), count=MOST_IMAGES)
    session.next(page, asked.holding, 0)  # as the page says every minute
    assert not set(held) & set(_held(session.next(other, [], MOST_IMAGES)))
    session.answer(page, _held(screen[:1]), "label", ["rose"], saw_suggestion=False)
    assert len(session.undo(page)) == 1 + MOST_TOGETHER
