"""The registered versions as a table."""

from __future__ import annotations

import pandas as pd

from patchline.flows.closing.close_runs import tell_closed
from patchline.pipeline.registry.registered_models import summaries

_MAIN_METRICS = (
    "test/accuracy",
    "test/accuracy_low",
    "test/accuracy_high",
    "test/balanced_accuracy",
    "test/macro_f1",
    "test/log_loss",
    "test/ece",
)
_OF_LABEL_SETS = ("test/mAP", "test/mAP_low", "test/mAP_high")
"""Columns that only models have whose images have sets of labels."""


def version_table(name: str | None = None) -> pd.DataFrame:
    """Return a row for each version of one model or of all, newest first; see `patchline.models`.

    Raises:
        ModelReferenceError: if there is no model of that name.
    """
    tell_closed()
    rows = [
        {
            "name": model.name,
            "version": int(version.version),
            "aliases": ", ".join(version.aliases),
            **{key: version.metrics.get(key) for key in _MAIN_METRICS},
            **{key: version.metrics[key] for key in _OF_LABEL_SETS if key in version.metrics},
            "created_at": pd.Timestamp(version.created_at),
            "run_id": version.run_id,
            "data_fingerprint": version.data_fingerprint,
            "test_images": version.test_images,
            "provenance": version.provenance,
        }
        for model in summaries(name)
        for version in model.versions
    ]
    columns = ["name", "version", "aliases", *_MAIN_METRICS]
    columns += ["created_at", "run_id", "data_fingerprint", "test_images", "provenance"]
    return pd.DataFrame(rows, columns=columns).set_index(["name", "version"])
