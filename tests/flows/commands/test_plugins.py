"""The commands `patchline plugins`, and what becomes of plugins that are broken."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_cost import ModelCost, model_cost
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import KINDS
from patchline.plugin_api import API_VERSION
from patchline.plugin_checks import checks_of
from tests.conftest import contents, patchline_here, write_photos
from tests.made.servers import Command

_SOUND = '''"""Eight patches a side."""

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingPlugin, PatchTokens, PluginConfig


class GuestConfig(PluginConfig):
    """There is nothing to set."""


class Guest(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.grid = (context.height // 8, context.width // 8)
        self.projection = nn.Conv2d(context.channels, context.embed_dim, 8, 8)

    def forward(self, images_BCHW):
        return PatchTokens(self.projection(images_BCHW).flatten(2).transpose(1, 2), self.grid)


plugin = PatchEmbeddingPlugin(
    summary="Eight patches a side", paper="", config_class=GuestConfig, build=Guest
)
'''
_BUILT = "        super().__init__()\n"


BROKEN: list[tuple[str, str | None, str, str | None]] = [
    (
        "lacking",
        "import no_such_library\n",
        (
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'. Repair or "
            "uninstall guest-lacking."
        ),
        None,
    ),
    (
        "mistyped",
        "plugin = 3\n",
        "is a int, not a PatchEmbeddingPlugin. Point its entry point at the right object.",
        None,
    ),
    (
        "dated",
        (
            "from dataclasses import replace\n"
            "from patchline.plugins.patch_embeddings import linear\n"
            f"plugin = replace(linear.plugin, api_version={API_VERSION + 1})\n"
        ),
        (
            f"was written for plugin API {API_VERSION + 1}; this Patchline has {API_VERSION}. "
            "Install a matching version of one of them."
        ),
        None,
    ),
    (
        "absent",
        None,
        (
            "cannot be imported: ModuleNotFoundError: No module named 'guest_absent'. Repair or "
            "uninstall guest-absent."
        ),
        "module guest_absent does not exist",
    ),
    (
        "garbled",
        "def plugin(:\n",
        (
            "cannot be imported: SyntaxError: invalid syntax (guest_garbled.py, line 1). Repair or "
            "uninstall guest-garbled."
        ),
        "SyntaxError: invalid syntax",
    ),
    (
        "failing",
        _SOUND.replace(_BUILT, _BUILT + '        raise ValueError("no such width")\n'),
        (
            "failed to build: ValueError: no such width. Run `patchline plugins check "
            "patch_embedding failing` and fix the plugin."
        ),
        None,
    ),
    (
        "modular",
        _SOUND.replace("build=Guest", "build=lambda *_: 3"),
        "built a int, not a torch.nn.Module. Repair its build.",
        None,
    ),
]
"""Its name, its source, what is said of it, and what the list knows without importing it."""


def _install(site: Path, distribution: str, entries: list[str], source: str | None) -> None:
    """Lay out an installed distribution with patch embeddings of a module of its name."""
    information = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    (information / "METADATA").write_text(metadata, encoding="utf-8")
    points = "\n".join(["[patchline.patch_embeddings]", *entries])
    (information / "entry_points.txt").write_text(points, encoding="utf-8")
    if source is not None:
        (site / f"{distribution.replace('-', '_')}.py").write_text(source, encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of installed distributions: each broken one, a sound one, and two rivals."""
    folder = tmp_path_factory.mktemp("site")
    for name, source, *_ in [*BROKEN, ("sound", _SOUND)]:
        _install(folder, f"guest-{name}", [f"{name} = guest_{name}:plugin"], source)
    for owner in ("first-rival", "second-rival"):
        _install(folder, owner, ["wanted = guest_sound:plugin"], None)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find those distributions."""
    monkeypatch.syspath_prepend(str(site))


def _sentence(name: str) -> str:
    """Return the line that explains a broken plugin."""
    [(_, _, sentence, _)] = [each for each in BROKEN if each[0] == name]
    return f"The patch_embedding plugin '{name}' of guest-{name} 1.0 {sentence}\n"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", [name for name, *_ in BROKEN])
def test_a_broken_plugin_that_is_asked_for_is_explained(run_here: Command, name: str) -> None:
    """`plugins show` names plugin, distribution, reason and remedy in one sentence."""
    assert f"Error: {_sentence(name)}" in run_here.refusal("plugins show", name)


@pytest.mark.usefixtures("installed")
def test_others_are_not_hurt(run_here: Command, tmp_path: Path) -> None:
    """Of a name with two owners neither is chosen, both are named; what is sound works.

    What can be imported is checked, with exit code 1; for the rest, and a run, there is nothing to
    begin.
    """
    assert (
        "The patch_embedding name 'wanted' is taken by first-rival and second-rival. Uninstall "
        "one of them, or rename its entry point."
    ) in run_here.refusal("plugins show wanted")
    assert run_here.json("plugins show sound")["tokens"] == 28 * 28
    code, out, err = run_here("plugins check failing")
    assert (code, err) == (1, "")
    [line] = [line for line in out.splitlines() if "returns_patch_tokens" in line]
    assert " failed " in line
    assert line.endswith("It raised ValueError: no such width")
    run = "run photos --preset none --model.patch-embedding.name lacking"
    for command in ("plugins check lacking", run):
        assert _sentence("lacking") in run_here.refusal(command)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("installed")
def test_the_settings_of_a_broken_plugin_are_said_to_be_unknown(run_here: Command) -> None:
    """The search finds those of all others."""
    code, out, err = run_here("settings depth")
    assert code == 0
    assert "--model.depth" in out
    assert f"The settings of the plugin lacking are not known: {_sentence('lacking')}" in err


@pytest.mark.usefixtures("installed")
def test_the_list_has_them_all_and_marks_what_it_can_know(run_here: Command) -> None:
    """Listing imports nothing, so it shows what is missing, unreadable or taken twice.

    Kinds are headings; names stand below in alphabetical order, with owner and summary.
    """
    plugins = run_here.json("plugins list")["plugins"]
    keys = {"kind", "name", "distribution", "version", "summary", "error"}
    assert all(set(plugin) == keys for plugin in plugins)
    errors = {p["name"]: p["error"] or "" for p in plugins if p["distribution"] != "patchline"}
    expected = {name: listed or "" for name, _, _, listed in BROKEN}
    expected |= {"sound": "", "wanted": "its name is taken by first-rival and second-rival"}
    assert set(errors) == set(expected)
    for name, listed in expected.items():
        assert listed in errors[name]
        assert bool(listed) == bool(errors[name])
    assert not [p for p in plugins if p["distribution"] == "patchline" and p["error"]]
    blocks = [block.splitlines() for block in run_here.out("plugins list").strip().split("\n\n")]
    assert [block[0] for block in blocks] == list(KINDS)
    for heading, *lines in blocks:
        under = [plugin for plugin in plugins if plugin["kind"] == heading]
        assert [line.split()[0] for line in lines] == sorted(p["name"] for p in under)
        for line, plugin in zip(lines, under, strict=True):
            assert line.split()[1:3] == [plugin["distribution"], plugin["version"]]
            assert line.endswith(plugin["error"] or plugin["summary"])
            assert ("cannot be used: " in line) == bool(plugin["error"])


@pytest.mark.slow  # imports and training
@pytest.mark.usefixtures("installed", "prefect_server", "own_store")
def test_a_run_with_a_broken_plugin_ends_in_its_sentence(
    run_here: Command, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, no trace, and nothing is left that claims to run."""
    monkeypatch.setenv("PYTHONPATH", str(site))  # of the training process
    write_photos(tmp_path / "photos", images=8)
    run = "run photos --preset none --model.patch-embedding.name failing"
    assert _sentence("failing") in run_here.refusal(run)
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        assert not list(connection.execute("SELECT name FROM runs WHERE status = 'RUNNING'"))


SHIFTED = {"size": "mini", "patch_embedding": {"name": "shifted"}}
CCT = {"patch_embedding": {"name": "cct", "num_layers": 1}}
LAYER = ("--model.patch-embedding.num-layers", "1")
SMALL = ("--data.image-size", "32")
MODEL = '''
"""One linear layer on averaged patches."""

import torch
from torch import nn

from patchline.plugin_api import ModelPlugin, PluginConfig


class FlatConfig(PluginConfig):
    """One setting."""

    width: int = 8
    """Dimension of a token."""


class Flat(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.patches = context.patch_embedding(config.width)
        self.head = nn.Linear(config.width, context.num_classes)

    def forward(self, images_BCHW):
        return self.head(self.patches(images_BCHW).tokens_BND.mean(1))


plugin = ModelPlugin(
    summary="A linear model", paper="", config_class=FlatConfig, build=Flat,
    patch_embedding="linear",
)
'''


def _figures(image_size: int, **choice: Any) -> dict[str, Any]:
    return model_cost(ModelChoice.model_validate(choice), image_size).model_dump()


def test_the_text_has_settings_and_figures(run_here: Command) -> None:
    """It prints summary, paper, settings with what was given, and every figure."""
    out = run_here.out("plugins show vit --model.size ti", *SMALL)
    assert out.startswith("model vit (patchline ")
    assert "arXiv 2010.11929" in out
    assert re.search(r'\n  size +Dimensions: .* \[default "micro", set to "ti"\]\n', out)
    assert "vit with patch embedding conv, 32x32 pixels, 1000 classes:" in out
    figures = _figures(32, size="ti")
    for text in (
        f"{figures['parameters']:,} ({figures['parameters_without_head']:,} without the head)",
        f"{figures['macs'] / 1e9:.3f} GMACs per image",
        f"{figures['activation_bytes'] / 2**20:.1f} MiB per image in training, float32",
    ):
        assert f" {text}\n" in out


@pytest.mark.parametrize(
    ("arguments", "image_size", "choice"),
    [
        (["vit"], 224, {}),
        (["shifted", "--model.size=mini", *SMALL], 32, SHIFTED),
        (
            ["patch_embedding", "cct", "--model.name", "cct", *LAYER, *SMALL],
            *(32, {"name": "cct", **CCT}),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_settings_are_the_flags_of_run(
    run_here: Command, arguments: list[str], image_size: int, choice: dict[str, Any]
) -> None:
    """The figures are those of the model that the flags describe; the image is 224 by default."""
    shown = run_here.json("plugins show", *arguments)
    assert set(shown) == {"kind", "name", "image_size", "settings", *ModelCost.model_fields}
    figures = {"image_size": image_size, **_figures(image_size, **choice)}
    assert {key: shown[key] for key in figures} == figures


def test_other_kinds_show_settings_and_no_costs(run_here: Command) -> None:
    """An augmentation has settings, and nothing that a model costs."""
    light = (
        "--augmentation.no-horizontal-flip",
        "augmentation",
        "light",
        "--augmentation.shift=0.2",
    )
    shown = run_here.json("plugins show", *light)
    assert set(shown) == {"kind", "name", "settings"}
    assert "shift" in shown["settings"]["properties"]
    text = run_here.out("plugins show", *light)
    assert "parameters" not in text
    assert "[default 0.12, set to 0.2]" in text


def test_a_model_from_a_file_is_fed_by_what_it_declares(tmp_path: Path, run_here: Command) -> None:
    """`--plugin FILE.py` adds a model, whose settings are flags and whose embedding is its own.

    A forward pass that raises is the plugin's fault: one sentence names it.
    """
    (tmp_path / "flat.py").write_text(MODEL, encoding="utf-8")
    file = ("--plugin", "flat.py")
    listed = run_here.json("plugins list", *file)["plugins"]
    assert ("flat", "A linear model") in {(each["name"], each["summary"]) for each in listed}
    wrong = run_here.refusal("run", *file, "--model.name", "flat", "--model.widht", "3")
    assert "--model.width" in wrong
    shown = run_here.json("plugins show flat", *file, *SMALL, "--model.width=16")
    assert shown["parameters_without_head"] == (3 * 4 * 4 + 1) * 16
    assert shown["parameters"] == (3 * 4 * 4 + 1) * 16 + 1000 * 17
    assert shown["macs"] == 64 * 48 * 16 + 1000 * 16
    assert set(shown["settings"]["properties"]) == {"width"}
    broken = MODEL.replace("return self.head(", "return self.head(images_BCHW) * self.head(")
    (tmp_path / "flawed.py").write_text(broken, encoding="utf-8")
    shown = run_here.refusal("plugins show flawed --plugin flawed.py", *SMALL)
    assert "Error: The model plugin 'flawed'" in shown


def test_a_picture_is_written_beside_the_answer(run_here: Command) -> None:
    """`--picture` writes the file and says so on standard error; the answer stays one object."""
    Image.new("RGB", (300, 240), (200, 120, 40)).save("photo.png")
    pictured = ("--photo", "photo.png", "--picture", "x.png", "--json")
    code, out, err = run_here("plugins show conv", *SMALL, *pictured)
    assert (code, err) == (0, "Picture: x.png\n")
    assert json.loads(out)["tokens"] == 64
    with Image.open("x.png") as picture:
        assert (picture.format, min(picture.size) > 300) == ("PNG", True)


def test_learning_rates_are_those_of_the_schedule(run_here: Command, tmp_path: Path) -> None:
    """Linear falls from the peak to zero; a picture is written on request.

    Schedule-free AdamW is constant after the warm-up.
    """
    linear = ("schedule", "linear", "--optimizer.warmup-fraction", "0")
    peak = ("--optimizer.learning-rate", "0.5")
    rates = run_here.json("plugins show", *linear, *peak)["learning_rates"]
    expected = [0.5 * (1 - (point + 0.5) / len(rates)) for point in range(len(rates))]
    assert rates == pytest.approx(expected)
    out = run_here.out("plugins show schedule wsd --picture rates.svg")
    assert "optimizer adamw, schedule wsd" in out
    assert "└──" in out
    assert "<svg" in (tmp_path / "rates.svg").read_text(encoding="utf-8")
    rates = run_here.json("plugins show optimizer schedule_free")["learning_rates"]
    assert rates[0] < rates[10] == rates[-1]


FAULTY = '''
"""A data source of one class."""

from pathlib import Path

from PIL import Image

from patchline.plugin_api import (
    DataError, DataSourcePlugin, ImageListing, ListedImage, PluginConfig
)


class OneClassConfig(PluginConfig):
    """One setting."""

    label: str = "mark"
    """The one class."""


class OneClass:
    def __init__(self, config, context):
        print('hello')
        self.config, self.path = config, context.path

    def list_images(self):
        root = Path(self.path)
        if not root.is_dir():
            raise DataError(f"There is no folder {root}. Check the path.")
        images = [ListedImage(file.name, self.config.label) for file in sorted(root.iterdir())]
        return ImageListing(name="marks", root=root, images=images)


def example(folder):
    Image.new("L", (8, 8)).save(folder / "a.png")
    return str(folder)


plugin = DataSourcePlugin(
    summary="One class", paper="", config_class=OneClassConfig, build=OneClass, example=example
)
'''


def _names(kind: plugin_loader.Kind, name: str) -> list[str]:
    return [check.name for check in checks_of(plugin_loader.load(kind, name))]


def test_a_plugin_from_a_file_that_breaks_a_rule(tmp_path: Path) -> None:
    """The failed check says why, the others are run all the same, and the exit code is 1.

    Settings are flags. `--json` is one object; the lines, and what a plugin prints, go to standard
    error.
    """
    (tmp_path / "one_class.py").write_text(FAULTY, encoding="utf-8")
    arguments = ("plugins check one_class --plugin one_class.py",)
    done = patchline_here(*arguments, "--data.options.label", "spot", cwd=tmp_path)
    assert done.code == 1
    assert "data_source one_class (" in done.out
    [failed] = [line for line in done.out.splitlines() if " failed " in line]
    assert failed.split()[0] == "lists_labelled_images"
    assert failed.endswith("The example has the classes ['spot']. At least two are required.")
    assert done.out.rstrip().endswith("9 passed, 0 excepted, 1 failed")
    done = patchline_here(*arguments, "--json", cwd=tmp_path)
    answer = done.json
    assert (done.code, answer["passed"], "hello" in done.err) == (1, False, True)
    assert (answer["kind"], answer["name"]) == ("data_source", "one_class")
    assert [check["name"] for check in answer["checks"]] == _names("data_source", "image_folder")
    for check in answer["checks"]:
        faulty = check["name"] == "lists_labelled_images"
        assert check["status"] == ("failed" if faulty else "passed")
        assert (bool(check["message"]), check["seconds"] >= 0) == (faulty, True)
        assert check["name"] in done.err


def test_a_declared_exception_is_shown_with_its_reason(tmp_path: Path) -> None:
    """What a plugin cannot do by design is no failure."""
    done = patchline_here("plugins check none --json", cwd=tmp_path)
    assert (done.code, done.json["passed"]) == (0, True)
    [excepted] = [check for check in done.json["checks"] if check["status"] == "excepted"]
    assert excepted["name"] == "changes_something"
    assert excepted["message"] == "it is meant to change nothing"
    assert "expected: it is meant to change nothing" in done.err
    assert "10 passed, 1 excepted, 0 failed" in done.err


FLAGS = {
    "patch_embedding": "run --model.patch-embedding.name mine",
    "data_source": "run --data.source mine --data.path labels.csv",
    "model": "run --model.name mine",
    "store": "run --workspace mine://team",
    "tool": "mine .",
}


def test_files_and_next_commands_are_told(run_here: Command, tmp_path: Path) -> None:
    """`--json` has the files that exist; for people, a place with a space is quoted."""
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        answer = run_here.json("plugins new", kind, "mine", "--into", kind)
        folder = f"{kind}/patchline-mine"
        assert (answer["kind"], answer["name"], answer["folder"]) == (kind, "mine", folder)
        assert set(answer["files"]) == contents(tmp_path / folder).keys()
        assert answer["next"] == [
            f"pip install -e {folder}",
            f"patchline plugins check {kind} mine",
            f"patchline {FLAGS.get(kind, f'run --{kind}.name mine')}",
            f"python -m pytest {folder}",
        ]
    (tmp_path / "my plugins").mkdir()
    out = run_here.out("plugins new patch_embedding my_stem --into", "my plugins")
    assert "  tests/" in out
    assert "  pip install -e 'my plugins/patchline-my-stem'\n" in out


def test_images_lie_in_a_new_store(
    run_here: Command, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file alone is enough, for the images and for a workspace."""
    monkeypatch.setenv("SHARED_DISK", str(tmp_path / "disk"))
    shutil.copytree(photos, tmp_path / "disk/photos")
    written = tmp_path / run_here.json("plugins new store hub")["folder"]
    shutil.copy(written / "patchline_hub/plugin.py", tmp_path / "hub.py")
    own = ("--plugin", "hub.py", "--workspace", "hub://team")
    found = run_here.json("data inspect hub://photos", *own)
    assert found["images"] == 60
    assert list((tmp_path / "disk/team").rglob("patchline.json"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("show vit --model.sise b", ["--model.sise", "--model.size"]),
        ("show vit --model.depth 0", ["model.depth", "0", "from 1 to 256"]),
        ("show vit --model.patch-embedding.patch-size 5 --data.image-size 32",
         ["patch_size 5", "32x32", "data.image_size"]),
        ("show timm --model.patch-embedding.name none --data.image-size 0",
         ["data.image_size", "from 4 to 1024"]),
        ("show vit --model.name simple_vit", ["model.name", "simple_vit", "vit"]),
        ("show cct", ["'cct'", "a model and a patch_embedding", "Add the kind before the name"]),
        ("show conv --model.name torchvision", ["conv", "torchvision", "no patch embedding"]),
        ("show model torchvision --model.architecture resnet19", ["resnet19", "resnet18"]),
        ("show", ["[KIND] NAME"]),
        ("show schedule cosin", ["There is no schedule 'cosin'", "cosine", "wsd"]),
        ("show vit --picture a.png", ["--picture", "vit", "model"]),
        ("show conv --photo a.png", ["--photo", "--picture"]),
        ("show conv --photo none.png --picture a.png", ["none.png", "cannot be read"]),
        ("check", ["Name one plugin: [KIND] NAME.", "`patchline plugins list`"]),
        ("check model linear", ["There is no model plugin 'linear'.", "Installed: cct,"]),
        ("check conv_stem --model.patch-embedding.norm layer",
         ["model.patch_embedding.norm is 'layer'", "'batch' or 'group'"]),
        ("check linear --model.patch-embedding.patch-size 5", ["patch_size 5 does not divide"]),
        ("check none --training.epochs 3", ["--training.epochs"]),
        ("check mine --plugin mine.py", ["mine.py does not exist"]),
        # A switch would be on whatever the word behind it says.
        ("check image_folder --data.options.mirror-symmetric false", ["false"]),
        ("new patch_embeding my_stem", ["Did you mean 'patch_embedding'?"]),
        ("new model vit", ["The model plugin 'vit' already exists"]),
        ("new model mine --into none", ["There is no folder none"]),
        ("new model mine --into file", ["file is not a folder"]),
        ("new model mine --into full", ["full/patchline-mine already exists"]),
        ("new model", ["NAME"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_answered_in_a_sentence(
    run_here: Command, tmp_path: Path, arguments: str, words: list[str]
) -> None:
    """Value, rule and remedy; nothing else is printed, and nothing is written."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "full/patchline-mine").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    [sentence] = run_here.refusal(f"plugins {arguments}").splitlines()
    assert sentence.endswith((".", "?"))
    for word in words:
        assert word in sentence
    for wrong in ("Unexpected", "Did you mean --data?"):  # there is no such flag
        assert wrong not in sentence
    assert sorted(tmp_path.rglob("*")) == before
