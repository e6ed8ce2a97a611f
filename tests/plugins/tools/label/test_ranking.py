"""Which images are asked about: typical ones, then uncertain ones, a third at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from patchline.plugins.tools.label.pool import draw_at_random
from patchline.plugins.tools.label.ranking import ImageOrder, ranking, typical
from patchline.plugins.tools.label.server.image_features import KeptFeatures

KEYS = [f"{number:016x}" for number in range(1000)]


def _clusters(count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return features in clusters, the last of whose images is far from its centre."""
    random = np.random.default_rng(0)
    centres = np.eye(count, 16)
    features = np.repeat(centres, 40, 0) + 0.05 * random.normal(size=(40 * count, 16))
    features[39::40] += 0.4 * random.normal(size=(count, 16))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features.astype(np.float32), np.repeat(np.arange(count), 40)


def test_typical_images_cover_every_cluster_and_no_outlier() -> None:
    """With as many as clusters, each has one, from its dense part; those with labels come last."""
    features, cluster = _clusters()
    rows = typical(features, range(len(features)), [], 5, seed=0)
    assert sorted(cluster[rows]) == [0, 1, 2, 3, 4]
    assert not set(rows) & set(range(39, 200, 40))
    labelled = [0, 40, 80]
    rows = typical(features, [row for row in range(200) if row not in labelled], labelled, 2, 0)
    assert sorted(cluster[rows]) == [3, 4]
    assert typical(features, [], labelled, 2, 0) == []


def test_uncertain_images_follow_once_each_class_has_labels() -> None:
    """The image between two classes is asked about first."""
    features, cluster = _clusters(2)
    between = np.ones(16, np.float32)
    between[2:] = 0
    features[5] = between / np.linalg.norm(between)
    labelled = [*range(10, 22), *range(50, 62)]
    labels = [(str(cluster[row]),) for row in labelled]
    left = [row for row in range(len(features)) if row not in labelled]
    found = ranking(features, left, labelled, labels, 3)
    assert (found.source, found.rows[0]) == ("uncertain", 5)
    assert ranking(features, left, labelled[:3], labels[:3], 3).source == "representative"


def test_every_third_image_is_a_random_draw() -> None:
    """A third of the images is for random draws alone, whatever is ranked."""
    order, asked = ImageOrder(KEYS, seed=3), dict[str, str]()
    order.rank([key for key in KEYS if key not in order.sample], "representative")
    while len(asked) < 300 and (chosen := order.next(lambda key: key not in asked)):
        asked[chosen.key] = chosen.source
    drawn = {key for key, source in asked.items() if source == "random"}
    assert len(drawn) == 100
    assert drawn <= order.sample


def test_the_random_third_stays_when_images_are_added() -> None:
    """The statistics of a folder that grows stay those of a random sample."""
    sample, others = draw_at_random(KEYS, seed=0)
    assert 280 < len(sample) < 390
    assert sorted(sample + others) == sorted(KEYS)
    fewer, _ = draw_at_random(KEYS[:300], seed=0)
    assert fewer == [key for key in sample if key in KEYS[:300]]
    assert draw_at_random(KEYS, seed=1)[0] != sample


def test_near_duplicates_are_in_the_random_third_together() -> None:
    """As often as a single image, however many they are; and no other draw asks about one."""
    bursts = [KEYS[start : start + 10] for start in range(0, len(KEYS), 10)]
    near = {key: [other for other in each if other != key] for each in bursts for key in each}
    order = ImageOrder(KEYS, seed=0)
    order.rank(KEYS, "uncertain")
    order.group(near)
    inside = [sum(key in order.sample for key in each) for each in bursts]
    assert set(inside) == {0, 10}
    assert 20 < inside.count(10) < 47
    assert order.ranked(lambda key: key in order.sample) == 0


def test_results_outlast_the_process_and_a_damaged_file_costs_its_own_only(tmp_path: Path) -> None:
    """What a network has computed is kept by the digest of the file, in any order of images."""
    kept = KeptFeatures(tmp_path, ("probabilities", "features"))
    results = np.eye(2, 3), np.arange(8.0).reshape(2, 4)
    kept.add(["a", "b"], results)
    [first] = tmp_path.iterdir()
    kept.add(["c"], [each[:1] for each in results])
    again = KeptFeatures(tmp_path, ("probabilities", "features"))
    for stored, computed in zip(again.of(["b", "a"]), results, strict=True):
        np.testing.assert_array_equal(stored, computed[::-1])
    first.write_bytes(first.read_bytes()[:200])
    left = KeptFeatures(tmp_path, ("probabilities", "features"))
    assert ("a" in left, "c" in left) == (False, True)
