"""Findings about images that are not 8 bits of grey or RGB."""

from __future__ import annotations

import pandas as pd

from patchline.pipeline.data.value_ranges.data_values import DataValues, summaries
from patchline.pipeline.inspection.finding import Finding, finding_on_files

_MAPPED = (
    "Maps the values of all images by one range, in runs and in their packages alike. Set "
    "data.value_range, data.value_range_percentiles or data.bands to choose otherwise."
)
_AS_IT_IS = "Uses the images as this says, in runs and in their packages alike."


def findings_on_values(rows: pd.DataFrame, values: DataValues) -> list[Finding]:
    """Return what becomes of values and bands, and why a run cannot use them.

    Args:
        rows: the usable images.
        values: what was decided for the data set.
    """
    deep = [each.is_deep or each.reduced > 0 for each in summaries(rows)]
    files = tuple(rows["path"][deep])
    findings = []
    if values.problem:
        findings.append(
            finding_on_files(
                values.problem_kind,
                "error",
                files or tuple(rows["path"]),
                str(values.problem).partition(". ")[0] + ".",
                f"Stops a run. {str(values.problem).partition('. ')[2]}",
            )
        )
    if values.notes and not (values.problem and values.problem_kind == "value_range"):
        findings.append(
            finding_on_files(
                "value_range",
                "warning" if values.losses else "note",
                files or tuple(rows["path"]),
                f"{'; '.join(values.notes)}.",
                _MAPPED if values.spec.ranges or values.spec.bands else _AS_IT_IS,
            )
        )
    return findings
