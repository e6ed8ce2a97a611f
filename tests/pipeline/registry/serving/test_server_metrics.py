"""The metrics of a server that follows an alias for years."""

from __future__ import annotations

from patchline.pipeline.web.server_metrics import ServerMetrics


def test_only_the_last_versions_are_counted_by_class() -> None:
    """Each has a thousand classes: those of every version ever served would fill the memory."""
    metrics = ServerMetrics()
    for version in ("1", "2", "3", "4", "1", "5"):
        metrics.serving("flowers", version)
        metrics.answered(version, {"label": "rose"})
        metrics.answered(version, {"labels": [{"label": "red"}, {"label": "wild"}]})
        metrics.answered(version, {"labels": []})
    text = metrics.text().decode()
    for version, counted in (("1", "2.0"), ("3", "1.0"), ("4", "1.0"), ("5", "1.0")):
        for label in ("rose", "red", "wild"):
            name = f'patchline_predicted_images_total{{label="{label}",version="{version}"}}'
            assert f"{name} {counted}" in text
        name = f'patchline_images_without_label_total{{version="{version}"}}'
        assert f"{name} {counted}" in text
    assert 'version="2"' not in text
