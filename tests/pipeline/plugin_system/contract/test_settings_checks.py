"""The checks of settings and imports, which all kinds share, find what is wrong."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from patchline.plugin_api import AugmentationPlugin, PluginConfig
from patchline.plugin_checks import checks_of
from tests.pipeline.plugin_system.contract.faults import OF_SETTINGS, Fault, assert_found, failures


class Sound(PluginConfig):
    """Settings without fault."""

    strength: Annotated[float, Field(ge=0, le=1)] = 0.5
    """How much changes."""

    sizes: tuple[int, ...] = (1, 2)
    """Some sizes in pixels."""


class TakesEverything(PluginConfig):
    """Takes what it does not know."""

    model_config = ConfigDict(extra="ignore")


class Unexplained(PluginConfig):
    """Has a setting without a text."""

    strength: float = 0.5


class Renamed(PluginConfig):
    """Has a setting whose name in a file is another."""

    strength: Annotated[float, Field(validation_alias="power")] = 0.5
    """How much changes."""


class Growing(PluginConfig):
    """Doubles its setting each time it is read."""

    strength: Annotated[float, BeforeValidator(lambda value: 2 * value)] = 0.5
    """How much changes."""


class Rounded(PluginConfig):
    """Writes less than it reads."""

    strength: Annotated[float, PlainSerializer(lambda value: round(value, 1))] = 0.25
    """How much changes."""


class Unordered(PluginConfig):
    """Holds any object."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    path: Any = object()
    """Something."""


class Hidden(PluginConfig):
    """Leaves a setting out when it is written."""

    strength: Annotated[float, Field(exclude=True)] = 0.5
    """How much changes."""


class Needy(PluginConfig):
    """Has a setting without a default."""

    strength: float
    """How much changes."""


def _build(*_: Any) -> Any:
    raise NotImplementedError


def _plugin(
    config_class: Any = Sound, summary: Any = "For the tests", build: Callable[..., Any] = _build
) -> AugmentationPlugin[Any]:
    return AugmentationPlugin(summary=summary, paper="", config_class=config_class, build=build)


_SAYS = "says_what_it_is"
_REJECTS = "rejects_unknown_settings"
_EXPLAINS = "explains_every_setting"
_JSON = "settings_survive_json"
_IMPORTS = "imports_only_the_public_api"
FAULTS = [
    Fault(
        "no summary",
        _plugin(summary=" "),
        _SAYS,
        "Its summary is empty. Describe the plugin in one line.",
    ),
    Fault(
        "two lines",
        _plugin(summary="One.\nTwo."),
        _SAYS,
        "Its summary has several lines. Use one line.",
    ),
    Fault("a number", _plugin(summary=3), _SAYS, "It raised AttributeError: 'int' object"),
    Fault(
        "takes everything",
        _plugin(TakesEverything),
        _REJECTS,
        "TakesEverything accepts unknown settings. Forbid extra keys.",
    ),
    Fault(
        "a setting without a text",
        _plugin(Unexplained),
        _EXPLAINS,
        "The setting strength has no help text. Add a docstring below its field.",
    ),
    Fault("another name in a file", _plugin(Renamed), _JSON, "cannot be read from its own JSON"),
    Fault("grows when read", _plugin(Growing), _JSON, "is read from its own JSON as Growing"),
    Fault(
        "rounds when written",
        _plugin(Rounded),
        _JSON,
        "Rounded(strength=0.25) is read from its own JSON as Rounded(strength=0.2).",
    ),
    Fault("any object", _plugin(Unordered), _JSON, "It raised PydanticSerializationError: Unable"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found_in_its_own_words(fault: Fault) -> None:
    """The check of the rule that it breaks fails and names it."""
    assert_found(fault)


def test_sound_settings_pass() -> None:
    """The plugin that the faulty ones derive from passes, with other settings as well."""
    assert failures(_plugin(), OF_SETTINGS) == {}
    checks = checks_of(_plugin(), {"strength": 1, "sizes": [3]})
    assert [c.result().message for c in checks if c.name in OF_SETTINGS] == [""] * len(OF_SETTINGS)


def test_given_settings_are_written_and_read_too() -> None:
    """A setting that only another value loses is found when that value is given."""
    [check] = [c for c in checks_of(_plugin(Hidden), {"strength": 0.7}) if c.name == _JSON]
    assert "Hidden(strength=0.7) is read from its own JSON as Hidden(strength=0.5)" in (
        check.result().message
    )


def test_a_setting_without_a_default_is_named() -> None:
    """A plugin whose name alone is not enough is told which setting needs a default."""
    checks = {check.name: check for check in checks_of(_plugin(Needy), {"strength": 1})}
    assert checks[_EXPLAINS].result().message.startswith("The setting strength has no default.")


def test_the_shared_checks_are_the_first_of_every_kind() -> None:
    """The list of this module is the list of the code."""
    assert {check.name for check in checks_of(_plugin())[: len(OF_SETTINGS)]} == OF_SETTINGS


# -- imports -----------------------------------------------------------------------------------

PLUGIN_MODULE = '''"""A plugin for the tests."""

from patchline.plugin_api import AugmentationPlugin, PluginConfig
{imports}

class NoSettings(PluginConfig):
    """There is nothing to set."""


def build(config, context):
    """Build nothing."""


plugin = AugmentationPlugin(summary="x", paper="", config_class=NoSettings, build=build)
'''
Package = Callable[[dict[str, str]], Any]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Return a function that writes the package `guest` and returns its plugin."""
    before = set(sys.modules)

    def write(modules: dict[str, str]) -> Any:
        for name, source in {"guest/__init__.py": "", **modules}.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        return importlib.import_module("guest.entry").plugin

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "guest":
            del sys.modules[name]


@pytest.mark.parametrize(
    ("imports", "sentence"),
    [
        ("import patchline.pipeline.tracking", "entry.py:4 imports patchline.pipeline.tracking."),
        (
            "from patchline.pipeline import tracking",
            "entry.py:4 imports patchline.pipeline.tracking.",
        ),
        (
            "from patchline.pipeline.errors import DataError",
            "entry.py:4 imports patchline.pipeline.errors.DataError.",
        ),
        ("import patchline.pipeline", "entry.py:4 imports patchline.pipeline."),
        ("import patchline.flows.progress as p", "entry.py:4 imports patchline.flows.progress."),
        (
            "from patchline.plugins.patch_embeddings.patch_grid import PatchGridConfig",
            "entry.py:4 imports patchline.plugins.patch_embeddings.patch_grid.PatchGridConfig.",
        ),
        (
            "def late():\n    from patchline.pipeline import config",
            "entry.py:5 imports patchline.pipeline.config.",
        ),
    ],
)
def test_a_foreign_import_is_named_with_its_line(
    package: Package, imports: str, sentence: str
) -> None:
    """File, line and module are named, wherever in the module the import stands."""
    plugin = package({"guest/entry.py": PLUGIN_MODULE.format(imports=imports)})
    found = failures(plugin, OF_SETTINGS)
    assert set(found) == {_IMPORTS}
    assert found[_IMPORTS].startswith(sentence)
    assert "Import only patchline.plugin_api and patchline.pipeline.layers; " in found[_IMPORTS]


@pytest.mark.parametrize(
    "imports",
    [
        "from guest.network import Network",
        "from guest import network",
        "import guest.network",
        "from .network import Network",
        "from . import network",
        "from guest.deeper import more",
        "from .deeper.more import Network",
        "def late():\n    from .network import Network",
    ],
)
def test_a_foreign_import_is_found_in_a_second_module(package: Package, imports: str) -> None:
    """The modules that a plugin imports from its own package are read too, and theirs."""
    plugin = package(
        {
            "guest/entry.py": PLUGIN_MODULE.format(imports=imports),
            "guest/network.py": "from patchline.pipeline import tracking\nNetwork = 1\n",
            "guest/deeper/__init__.py": "",
            "guest/deeper/more.py": "from .. import network\nNetwork = 1\n",
        }
    )
    assert failures(plugin, OF_SETTINGS)[_IMPORTS].startswith(
        "network.py:1 imports patchline.pipeline.tracking."
    )


@pytest.mark.parametrize(
    "imports",
    [
        "import patchline.plugin_api",
        "from patchline import plugin_api, plugin_checks",
        "from patchline.pipeline import layers",
        "from patchline.pipeline.layers.attention import MultiHeadSelfAttention",
        "import json, os.path",
        "from guest import network",
        "from .network import pipeline",
    ],
)
def test_what_is_public_may_be_imported(package: Package, imports: str) -> None:
    """The API, the layers, other libraries and modules of its own are allowed."""
    plugin = package(
        {
            "guest/entry.py": PLUGIN_MODULE.format(imports=imports),
            "guest/network.py": "pipeline = 1\n",
        }
    )
    assert failures(plugin, OF_SETTINGS) == {}
