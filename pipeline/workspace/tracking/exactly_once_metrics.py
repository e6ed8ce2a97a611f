"""Send a run's metrics to MLflow exactly once: queued, retried after an outage, deduplicated.

The key and the step identify a metric. What the store already has, from this attempt or from one
that was interrupted, is not sent again. Files take the same queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline.errors import ServerAwayError, TakenOverError
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.waiting import wait_until
from patchline.pipeline.workers.host.system_errors import system_error
from patchline.pipeline.workspace.tracking import run_owner
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client, use_store

if TYPE_CHECKING:
    from mlflow.entities import Metric

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_FLUSH_SECONDS = 60.0
_MOST_METRICS = 500
"""Metrics in one request; MLflow accepts 1000."""


class MetricSender:
    """Send metrics and files to a run; an outage of the store delays them but loses none."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._client = client()
        self._metrics: list[Metric] = []
        self._files: list[Path] = []
        self._steps: dict[str, set[int]] = {}
        self._retry_after = 0.0
        self._failure: Exception | None = None

    def add_metrics(
        self, values: Mapping[str, float], step: int, seconds: float, *, send: bool = True
    ) -> None:
        """Queue metrics that were logged at `seconds` since the epoch, and send what is queued."""
        from mlflow.entities import Metric

        self._metrics += [
            Metric(key, float(value), int(seconds * 1000), step) for key, value in values.items()
        ]
        if send:
            self.send()

    def add_file(self, file: Path, *, send: bool = True) -> None:
        """Queue a file, and send what is queued."""
        self._files.append(file)
        if send:
            self.send()

    def send(self) -> bool:
        """Try to send what is queued, at most every five seconds after a failure.

        Returns:
            Whether nothing is left.

        Raises:
            TakenOverError: if another process owns the run now.
        """
        now = time.monotonic()
        if now >= self._retry_after:
            try:
                run_owner.check(self._run.run_id)
                self._send_all()
            except TakenOverError:
                raise
            except Exception as error:  # noqa: BLE001 - a store fails in many ways; all mean "later"
                logger.warning("MLflow does not answer; the training continues: %s", error)
                self._failure = error
                self._retry_after = now + _RETRY_SECONDS
        return not (self._metrics or self._files)

    def flush(self) -> None:
        """Send everything; wait up to a minute for a store that does not answer.

        Raises:
            ServerAwayError: if it does not answer by then.
        """
        if wait_until(self.send, 0.5, _FLUSH_SECONDS):
            return
        if not self._metrics and self._failure:
            reason = system_error(self._failure) or self._failure
            raise ServerAwayError(
                f"The file {self._files[0].name} could not be stored as an artifact for a "
                f"minute. {reason}"
            ) from self._failure
        raise ServerAwayError(
            f"{redact_text(use_store())} has not answered for a minute, so "
            f"{len(self._metrics)} metrics could not be logged. Start the server again."
        )

    def _send_all(self) -> None:
        while self._metrics:
            batch = self._metrics[:_MOST_METRICS]
            new = {(m.key, m.step): m for m in reversed(batch) if m.step not in self._there(m.key)}
            if new:
                self._client.log_batch(self._run.run_id, metrics=list(reversed(new.values())))
            for key, step in new:
                self._steps[key].add(step)
            del self._metrics[: len(batch)]
        while self._files:
            self._client.log_artifact(self._run.run_id, str(self._files[0]))
            self._files.pop(0)

    def _there(self, key: str) -> set[int]:
        """Return the steps of a metric that the store already has, from any attempt at the run."""
        if key not in self._steps:
            sent = (
                self._client.get_metric_history(self._run.run_id, key)
                if self._run.continued
                else ()
            )
            self._steps[key] = {metric.step for metric in sent}
        return self._steps[key]
