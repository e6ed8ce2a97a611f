"""Former names of layers work for one release."""

from __future__ import annotations

import importlib

import pytest

from pipeline.layers.renamed import RENAMED


@pytest.mark.parametrize(
    ("module", "former", "current"),
    [(module, *pair) for module, names in RENAMED.items() for pair in names.items()],
)
def test_a_former_name_is_the_current_function(module: str, former: str, current: str) -> None:
    """A plugin that imports a former name gets the function, and a warning that names it."""
    loaded = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{former} is now called {current}"):
        assert getattr(loaded, former) is getattr(loaded, current)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = loaded.no_such_name
