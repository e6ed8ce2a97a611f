"""The gates of a promotion are those of the version's run, a file and the flags together."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from patchline.pipeline.registry.config import GateConfig
from patchline.pipeline.registry.gate_settings import gates_for
from tests.pipeline.registry.made_versions import QUICK, make_version

RECORDED = {"minimum": {"macro_f1": 0.8}, "maximum": {"log_loss": 0.5}}
GIVEN = {"minimum": {"accuracy": 0.9}, "maximum": {"ece": 0.1}}


@pytest.mark.usefixtures("own_store")
def test_a_limit_in_a_flag_leaves_the_other_limits_as_they_are(tmp_path: Path) -> None:
    """Those of the run, or of the file that replaces them; the same metric takes the flag's."""
    config = QUICK.model_copy(update=RECORDED)
    reference = make_version("roses", tmp_path, config=config)
    file = tmp_path / "gates.yaml"
    file.write_text(yaml.safe_dump({"promotion": RECORDED}), "utf-8")
    for source in (None, file):
        gates = gates_for(reference, source, GateConfig.model_validate(GIVEN))
        assert gates.minimum == {"macro_f1": 0.8, "accuracy": 0.9}
        assert gates.maximum == {"log_loss": 0.5, "ece": 0.1}
        assert gates.package_check == (source is not None)
        stricter = GateConfig.model_validate({"minimum": {"macro_f1": 0.85}})
        assert gates_for(reference, source, stricter).minimum == {"macro_f1": 0.85}
    assert gates_for(reference, None, None) == config
