"""What several people do at the same time: each gets other images, answers, and takes answers back.

Every method returns when its effect is on the disk.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

from patchline.pipeline.data.labels.answer_columns import FINDING, NEAR_DUPLICATE, RANDOM, UNCHOSEN
from patchline.pipeline.data.labels.answers.answer import (
    SOMEBODY,
    Answer,
    Suggestion,
    Verdict,
    check_class,
    client_of,
    label_cell,
    new_batch,
    now,
)
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.evaluation.metrics.intervals import proportion
from patchline.plugins.tools.label.leases import MOST_EACH, MOST_TOGETHER, Leases
from patchline.plugins.tools.label.pool import Pool
from patchline.plugins.tools.label.ranking import Chosen, ImageOrder

_LONGEST_NAME = 80
LOOK_SECONDS = 60.0
"""Between two searches of the folder for new images."""


class TakenError(Exception):
    """Somebody else has answered the image, or is asked about it."""


class Advice(Protocol):
    """What is known about the images beside themselves."""

    def together(self, key: str) -> Sequence[str]:
        """Return the near duplicates of an image."""

    def suggestion(self, key: str) -> Suggestion | None:
        """Return what is predicted for an image."""

    def wake(self) -> None:
        """Learn that there are new answers, or new images."""

    def words(self) -> str:
        """Return how the images are ordered, and what is computed at the moment."""

    def suggests(self) -> str:
        """Return what makes suggestions; empty if nothing does."""


class Person(NamedTuple):
    """Who asks: the page in a browser, and the name that was typed there."""

    client: str
    name: str


class Offer(NamedTuple):
    """An image that a person is asked about."""

    key: str
    source: str
    together: tuple[str, ...]


class Session:
    """The answers of several people to the images of a folder.

    Args:
        pool: the images.
        answers: the table.
        order: the order in which images are asked about.
        advice: what else is known about the images.
        given: the labels that images have in the data, by key.
    """

    def __init__(
        self,
        pool: Pool,
        answers: AnswersTable,
        order: ImageOrder,
        advice: Advice,
        given: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.pool, self.answers, self.order, self.advice = pool, answers, order, advice
        self._leases = Leases(answers.beside("leases.json"))
        self._given = dict(given or {})
        self._unreadable: dict[str, str] = {}
        self._offered: dict[str, str] = {}
        self._seen: dict[str, Answer | None] = {}
        """The answer that stood when an image was given to a page."""
        self._lock = threading.RLock()
        self._looking, self._looked_at = threading.Lock(), time.monotonic()

    # -- asking --

    def look_for_images(self, *, now: bool) -> None:
        """Ask about images that were added to the folder since, and no more about removed ones.

        Args:
            now: also if that was done a short time ago, and try images that could not be read.
        """
        is_due = now or time.monotonic() - self._looked_at >= LOOK_SECONDS
        if not is_due or not self._looking.acquire(blocking=False):
            return
        try:
            present = self.pool.present()
            with self._lock:
                if now:
                    self._unreadable.clear()
                if self.pool.use(present):
                    self.order.use(list(self.pool.images))
                    self.advice.wake()
            self._looked_at = time.monotonic()
        finally:
            self._looking.release()

    def next(self, person: Person, holding: Sequence[str], count: int) -> list[Offer]:
        """Return the next images for a person, beside those that are on the screen.

        Args:
            person: who asks.
            holding: images on the screen, whose leases are renewed.
            count: the number of images to return at most.
        """
        self.answers.refresh()
        with self._lock:
            gone = [key for key in self._leases.of(person.client) if key not in holding]
            self._leases.release(gone, person.client)
            self._leases.take([key for key in holding if key in self.pool.images], person.client)
            offers: list[Offer] = []
            taken = set(holding)
            while len(offers) < count and len(taken) < MOST_EACH:
                chosen = self._chosen(taken)
                if chosen is None:
                    break
                offer = self._offer(chosen, taken)
                offers.append(offer)
                taken.update((offer.key, *offer.together))
                self._leases.take((offer.key, *offer.together), person.client)
                self._offered[offer.key] = offer.source
                self._see(offer.key, *offer.together)
            return offers

    def unsure(
        self, person: Person, holding: Sequence[str], count: int, reviewed: Sequence[str]
    ) -> list[Offer]:
        """Return images that somebody was unsure about, except those that were seen again."""
        with self._lock:
            left_out = {*holding, *reviewed}
            aside = [
                image.key
                for image in self.pool.images.values()
                if self._verdict(image.key) == "unsure" and image.key not in left_out
            ]
            free = [key for key in aside if self._leases.holder(key) is None]
            free = free[: min(count, max(0, MOST_EACH - len(holding)))]
            self._leases.take([*holding, *free], person.client)
            self._see(*free)
            return [Offer(key, self._source_of(key), ()) for key in free]

    def _chosen(self, taken: set[str]) -> Chosen | None:
        def is_new(key: str) -> bool:
            return key not in taken and self._is_open(key) and self._verdict(key) is None

        def was_skipped(key: str) -> bool:
            return key not in taken and self._is_open(key) and self._verdict(key) == "skip"

        return self.order.next(is_new) or self.order.next(was_skipped)

    def _is_open(self, key: str) -> bool:
        return (
            key in self.pool.images
            and key not in self._unreadable
            and self._leases.holder(key) is None
        )

    def _verdict(self, key: str) -> Verdict | None:
        """Return the answer to what is asked: an earlier round is none to a finding."""
        path = self.pool.images[key].path
        answer = self.answers.answer(path)
        if answer is None or (self._asks_findings and not self.answers.is_of_round(path)):
            return None
        return answer.verdict

    @property
    def _asks_findings(self) -> bool:
        return self.order.listed is not None

    def _offer(self, chosen: Chosen, taken: set[str]) -> Offer:
        near = [
            key
            for key in self.advice.together(chosen.key)
            if key not in taken and key != chosen.key and self._is_open(key)
            if self._verdict(key) in (None, "skip")
            if self.order.listed is None or key in self.order.listed
        ]
        return Offer(
            chosen.key, chosen.source, tuple(near[: min(MOST_TOGETHER, MOST_EACH - len(taken) - 1)])
        )

    def _see(self, *keys: str) -> None:
        for key in keys:
            self._seen[key] = self.answers.answer(self.pool.images[key].path)

    def _source_of(self, key: str) -> str:
        """Return why an image is asked about, or was asked about first."""
        answer = self.answers.answer(self.pool.images[key].path)
        if self._asks_findings and (answer is None or answer.source in UNCHOSEN):
            return FINDING  # of an image that was chosen before, the source stays
        if answer:
            return answer.source
        return self._offered.get(key) or (RANDOM if key in self.order.sample else "")

    # -- answering --

    def answer(
        self,
        person: Person,
        keys: Sequence[str],
        verdict: Verdict,
        labels: Sequence[str],
        *,
        saw_suggestion: bool,
    ) -> None:
        """Write an answer to an image and those that were shown with it.

        Args:
            person: who answers.
            keys: the image that was asked about, and near duplicates of it.
            verdict: whether the image is labelled, set aside or skipped.
            labels: the labels to give; none unless the image is labelled.
            saw_suggestion: whether the page showed the suggestion.

        Raises:
            ConfigError: if the answer does not fit the task.
            TakenError: if somebody else has the image, or has answered it.
        """
        with self._lock:
            known = self._labels(verdict, labels)
            name = check_person(person.name)
            for key in keys:
                if not self._leases.is_free(key, person.client):
                    raise TakenError("Somebody else is asked about this image.")
                if self._leases.holder(key) is None:
                    self._check_unanswered(key, person)
            batch, at = new_batch(person.client), now()
            answers = []
            for place, key in enumerate(keys):
                suggestion = self.advice.suggestion(key)
                answers.append(
                    Answer(
                        self.pool.images[key].path,
                        verdict,
                        known,
                        name,
                        at,
                        NEAR_DUPLICATE if place else self._source_of(key),
                        suggestion.shown(self.answers.task)
                        if suggestion and saw_suggestion
                        else "",
                        suggestion.probability if suggestion and saw_suggestion else None,
                        batch,
                    )
                )
            self.answers.append(answers)
            self._leases.release(keys, person.client)
        self.advice.wake()

    def _check_unanswered(self, key: str, person: Person) -> None:
        """Raise `TakenError` if another page has answered an image since this one was given it."""
        standing = self.answers.answer(self.pool.images[key].path)
        if standing is None or standing == self._seen.get(key):
            return
        page, by = client_of(standing.batch), standing.labeled_by
        has_own_name = by in ("", check_person(person.name))
        if page == person.client or (has_own_name and not page):
            return
        name = "Somebody else" if has_own_name else by
        raise TakenError(f"{name} has answered this image meanwhile.")

    def _labels(self, verdict: Verdict, labels: Sequence[str]) -> tuple[str, ...]:
        if verdict != "label":
            return ()
        unknown = sorted(set(labels) - set(self.answers.classes))
        if unknown:
            raise ConfigError(f"There is no class '{unknown[0][:80]}'. Add it first.")
        if self.answers.task == SINGLE_LABEL and len(labels) != 1:
            raise ConfigError("An image has exactly one class here. Choose one.")
        return tuple(sorted(set(labels)))

    def undo(self, person: Person) -> tuple[list[Offer], str]:
        """Take the last answer of a person back; return its images, which the page holds again.

        Returns:
            The image that was asked about, and those that got the same answer; empty if there is
            no answer to take back. And which answer it was, in words.

        Raises:
            TakenError: if somebody else is asked about one of them.
        """
        with self._lock:
            self.answers.refresh()
            batch = self.answers.last_batch(
                person.client, "" if person.name == SOMEBODY else check_person(person.name)
            )
            keys = [
                image.key
                for answer in batch
                if (image := self.pool.by_path.get(answer.path)) is not None
            ]
            if not keys:
                return [], ""
            if any(not self._leases.is_free(key, person.client) for key in keys):
                raise TakenError("Somebody else is asked about this image.")
            self.answers.undo(batch)
            self._leases.take(keys, person.client)
            self._see(*keys)
            self._offered[keys[0]] = FINDING if self._asks_findings else batch[0].source
        self.advice.wake()
        given = " and ".join(batch[0].labels) or batch[0].verdict
        words = f"The answer {given} to {PurePosixPath(batch[0].path).name}"
        return [Offer(key, self._offered[keys[0]], ()) for key in keys], words

    def add_class(self, name: str) -> str:
        """Add a class, and return its name as it is written.

        Raises:
            ConfigError: if it cannot be a class.
        """
        with self._lock:
            written = check_class(name, self.answers.classes)
            self.answers.add_classes([written])
            return written

    def note_unreadable(self, key: str, reason: str) -> None:
        """Ask nobody about an image that cannot be decoded."""
        with self._lock:
            self._unreadable[key] = reason

    # -- telling --

    def image(self, offer: Offer) -> dict[str, Any] | None:
        """Return what the page knows of an image; None if it was removed a moment ago."""
        image = self.pool.images.get(offer.key)
        if image is None:
            return None
        suggestion = self.advice.suggestion(offer.key)
        answer = self.answers.answer(image.path)
        return {
            "id": offer.key,
            "name": image.name,
            "source": offer.source,
            "together": list(offer.together),
            "labels": list(answer.labels) if answer else list(self._given.get(offer.key, ())),
            "verdict": answer.verdict if answer else None,
            "suggestion": suggestion
            and {"labels": list(suggestion.labels), "probability": suggestion.probability},
        }

    def progress(self) -> dict[str, Any]:
        """Return how far people are."""
        with self._lock:
            standing = self.answers.standing()
            asked = self.order.listed or self.pool.images
            here = {
                image.key: each
                for path, each in standing.items()
                if (image := self.pool.by_path.get(path)) is not None and image.key in asked
            }
            verdicts = Counter(self._verdict(key) for key in here)
            counts = Counter(label for each in here.values() for label in each.labels)
            by = Counter(
                each.labeled_by for key, each in here.items() if self._verdict(key) == "label"
            )
            return {
                "task": self.answers.task,
                "several": self.answers.task == MULTI_LABEL,
                "classes": [
                    {"name": name, "images": counts[name]} for name in self.answers.classes
                ],
                "images": len(asked),
                "labeled": verdicts["label"],
                "unsure": verdicts["unsure"],
                "skipped": verdicts["skip"],
                "unreadable": len(self._unreadable),
                "people": [{"name": name, "images": number} for name, number in by.most_common(20)],
                "order": self.advice.words(),
                "suggests": self.advice.suggests(),
                "agreement": self._agreement(list(here.values())),
                "notes": list(self.answers.notes),
            }

    def _agreement(self, answers: Sequence[Answer]) -> dict[str, Any] | None:
        """Return how often the suggestion was right, on images that were drawn at random."""
        checked = [
            each
            for each in answers
            if each.source == RANDOM and each.verdict == "label" and each.suggestion
        ]
        if not checked:
            return None
        task = self.answers.task
        right = sum(each.suggestion == label_cell(each.labels, task) for each in checked)
        estimate = proportion(right, len(checked))
        return {"right": right, **estimate.model_dump()}


def check_person(name: str) -> str:
    """Return the name of a person as the table writes it.

    Raises:
        ConfigError: if it is too long, or cannot be seen.
    """
    plain = " ".join(name.split())
    if len(plain) > _LONGEST_NAME or not plain.isprintable():
        raise ConfigError(f"A name has at most {_LONGEST_NAME} characters that can be seen.")
    return plain
