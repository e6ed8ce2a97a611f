"""`patchline label` as people use it: two at a time, killed, attacked, and its table trained on."""

from __future__ import annotations

import io
import json
import shutil
import time
from http import HTTPStatus
from pathlib import Path

import pytest
from PIL import Image

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.labelling.answer import Answer, now
from patchline.pipeline.labelling.answers_table import AnswersTable
from patchline.pipeline.labelling.new_class import checked_class
from patchline.pipeline.labels.answer_columns import ANSWER_SOURCE
from patchline.plugin_api import SourceContext
from patchline.plugins.data_sources.table import ImageTable, TableConfig
from tests.conftest import draw_photo, patchline, patchline_here
from tests.patience import patient
from tests.pipeline.labelling.labelled import Page, labelling, page_here, rows_of, write_images

ADA, BOB = "ada-00000001", "bob-00000002"
TOKEN = "0123456789abcdef0123"  # noqa: S105 - it guards nothing


def test_two_people_never_get_the_same_image_even_if_the_server_is_killed(tmp_path: Path) -> None:
    """A folder of 300 images opens at once, and each answer that is confirmed is in the table.

    What is on a screen stays there, and an image arrives as a picture. The command asks for the
    token of its file.
    """
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    headers, command = {"authorization": f"Bearer {TOKEN}"}, ("--token-file", str(token))
    folder = write_images(tmp_path / "inbox", 300, side=8)
    began = time.monotonic()
    with labelling(folder, "--classes", "rose, tulip", *command, headers=headers) as page:
        held = [image["id"] for image in page.next(ADA, 3)]
        seconds = time.monotonic() - began
        assert seconds < patient(6.0), seconds
        assert page.table == folder / "labels.csv"
        assert page.ask("GET", "/progress").status == HTTPStatus.UNAUTHORIZED
        reply = page.ask("GET", f"/image/{held[0]}?side=64", headers=headers)
        assert Image.open(io.BytesIO(reply.body)).size == (8, 8)
        progress = page.progress()
        assert progress["images"] == 300
        assert [each["name"] for each in progress["classes"]] == ["rose", "tulip"]
        assert progress["order"].startswith("random, because")
        others = [image["id"] for image in page.next(BOB, 3)]
        assert not set(held) & set(others)
        assert page.answer(ADA, held[:1], "rose").status == HTTPStatus.OK
        assert page.answer(BOB, held[1:2], "rose").status == HTTPStatus.CONFLICT
        page.kill()
    [row] = rows_of(folder / "labels.csv")
    assert (row["label"], row["labeled_by"], row["source"]) == ("rose", "ada", "random")
    with page_here(folder) as page:  # the classes are remembered, too
        seen = {image["id"] for image in page.next(BOB, 8, others)}
        assert not seen & set(held)
        assert page.answer(ADA, held[1:2], "tulip").status == HTTPStatus.OK
        undone = page.post("/undo", client=ADA, person="ada").json
        assert [image["id"] for image in undone["images"]] == held[1:2]
        assert page.answer(ADA, held[1:2], "rose").status == HTTPStatus.OK
        page.post("/answer", client=ADA, person="ada", ids=held[2:3], verdict="unsure")
        assert page.progress()["unsure"] == 1
    assert [row["label"] for row in rows_of(folder / "labels.csv")] == ["rose", "rose"]


def test_every_image_is_asked_about_once_and_skipped_ones_at_the_end(tmp_path: Path) -> None:
    """However often the page asks."""
    folder = write_images(tmp_path / "inbox", 12)
    with page_here(folder, "rose") as page:
        [first] = page.next(ADA)
        page.post("/answer", client=ADA, person="ada", ids=[first["id"]], verdict="skip")
        asked = []
        while images := page.next(ADA):
            asked.append(images[0]["id"])
            assert page.answer(ADA, asked[-1:], "rose").status == HTTPStatus.OK
        assert asked[-1] == first["id"]
        assert len(set(asked)) == len(asked) == 12
    assert len(rows_of(folder / "labels.csv")) == 12


def test_a_table_that_a_person_edits_is_imported_while_the_page_is_open(tmp_path: Path) -> None:
    """The page says that it is kept; the command tells the outcome of each row."""
    folder = write_images(tmp_path / "inbox", 6)
    table = folder / "labels.csv"
    with page_here(folder, "rose", "tulip") as page:
        for _ in range(3):
            [image] = page.next(ADA)
            assert page.answer(ADA, [image["id"]], "rose").status == HTTPStatus.OK
        first, second, third = (row["path"] for row in rows_of(table))
        [new] = page.next(ADA)
        header, *rows = table.read_text().splitlines()
        rows = [rows[0].replace("rose", "tulip"), rows[1].replace("rose", "")]
        more = [f"{new['name']},iris", "typo.png,iris"]
        table.write_text("\n".join([f"{header},site", *rows, *more]) + "\n")
        imported = patchline_here(
            "label", str(folder), "--import", str(table), "--json", cwd=tmp_path
        )
        assert imported.code == 0, imported.err
        assert imported.json == {
            "table": str(table),
            "rows": 4,
            "taken": [first, new["name"], second],
            "older": [],
            "unknown": ["typo.png"],
            "columns": ["site"],
        }
        [kept] = folder.glob("labels.edited-*.csv")
        assert kept.name in imported.err
        page.next(ADA)
        assert page.progress()["labeled"] == 3
    labels = {row["path"]: row["label"] for row in rows_of(table)}
    assert labels == {first: "tulip", third: "rose", new["name"]: "iris"}
    again = patchline_here("label", folder, "--import", kept, cwd=tmp_path)
    assert again.out.splitlines() == [
        "Rows taken in: 0",
        "Rows left out, because the answer is newer: 0",
        "Rows left out, because the folder has no such image: 1 (typo.png)",
        "Columns added: 0",
    ]
    wrong = patchline_here("label", folder, "--import", folder / "000.png", cwd=tmp_path)
    assert wrong.code == 2
    assert "Give a CSV table with the columns path and label." in wrong.err


def test_new_images_join_and_broken_ones_are_left_out(tmp_path: Path) -> None:
    """A file that is no image is named once, and asked about no more."""
    folder = write_images(tmp_path / "inbox", 1)
    with page_here(folder, "rose") as page:
        [image] = page.next(ADA)
        assert page.answer(ADA, [image["id"]], "rose").status == HTTPStatus.OK
        assert page.next(ADA) == []
        (folder / "broken.png").write_text("not an image")
        write_images(folder, 2)
        new = page.post("/next", client=ADA, count=3, look_again=True).json["images"]
        assert sorted(each["name"] for each in new) == ["001.png", "broken.png"]
        [broken] = [each for each in new if each["name"] == "broken.png"]
        reply = page.ask("GET", f"/image/{broken['id']}")
        assert reply.status == HTTPStatus.UNPROCESSABLE_ENTITY
        assert reply.json["error"].startswith("broken.png cannot be read: ")
        assert page.progress()["unreadable"] == 1
        assert [each["name"] for each in page.next(ADA, 3)] == ["001.png"]


def _refusals(page: Page) -> dict[str, int]:
    """Return the status of hostile requests."""
    body = json.dumps({"name": "rose"}).encode()
    as_json = {"content-type": "application/json"}
    own = {**page.headers, **as_json}
    outside = {**own, "origin": "https://elsewhere.example"}
    requests = {
        "path": ("GET", "/image/..%2f..%2fsecret.txt", None, page.headers),
        "dots": ("GET", "/static/../../../../session.py", None, page.headers),
        "encoded": ("GET", "/static/%2e%2e/application.py", None, page.headers),
        "origin": ("POST", "/classes", body, outside),
        "site": ("POST", "/classes", body, {**own, "sec-fetch-site": "cross-site"}),
        "host": ("POST", "/classes", body, {**own, "host": "elsewhere.example"}),
        "form": ("POST", "/classes", body, {**page.headers, "content-type": "text/plain"}),
        "token": ("POST", "/classes", body, as_json),
        "wrong": ("POST", "/classes", body, {**as_json, "authorization": "Bearer " + "x" * 20}),
        "image": ("GET", f"/image/{'0' * 16}", None, {}),
        "large": ("POST", "/classes", b'"' + b"x" * 300_000 + b'"', own),
        "values": ("POST", "/next", b'{"reviewed": [0' + b",0" * 20_000 + b"]}", own),
        "keys": ("POST", "/classes", b'{"name": "a", "path": "/etc"}', own),
    }
    return {name: page.ask(*request).status for name, request in requests.items()}


def test_hostile_requests_change_nothing(tmp_path: Path) -> None:
    """No path leaves the folder, no other page writes, and nothing is shown without the token."""
    folder = write_images(tmp_path / "inbox", 3)
    (tmp_path / "secret.txt").write_text("secret")
    refused = patchline_here("label", folder, "--host", "0.0.0.0", cwd=tmp_path)  # noqa: S104
    assert refused.code == 2
    assert "lets other machines label the images, which needs a token" in refused.err
    headers = {"authorization": f"Bearer {TOKEN}"}
    with page_here(folder, headers=headers, host="0.0.0.0", token=TOKEN) as page:  # noqa: S104
        assert _refusals(page) == {
            **dict.fromkeys(("path", "dots", "encoded"), HTTPStatus.NOT_FOUND),
            **dict.fromkeys(("origin", "site", "host"), HTTPStatus.FORBIDDEN),
            **dict.fromkeys(("token", "wrong", "image"), HTTPStatus.UNAUTHORIZED),
            "form": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            **dict.fromkeys(("large", "values"), HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
            "keys": HTTPStatus.BAD_REQUEST,
        }
        assert page.progress()["classes"] == []
        [image] = page.next(ADA)
        side = f"/image/{image['id']}?side={'0' * 7}32{'0' * 5000}"
        assert page.ask("GET", side, None, headers).status == HTTPStatus.BAD_REQUEST
        assert page.answer(ADA, [image["id"]], "rose").status == HTTPStatus.BAD_REQUEST
    assert not (folder / "labels.csv").exists()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "empty"),
        ("ROSE", "looks like 'rose'"),
        ("ro\u200bse", "invisible"),
        ('["a"]', "list"),
        ("x" * 101, "at most 100"),
    ],
)
def test_a_class_that_would_confuse_is_refused(name: str, part: str) -> None:
    """With the reason."""
    with pytest.raises(ConfigError, match=part):
        checked_class(name, ["rose"])


@pytest.mark.parametrize("several", [False, True])
def test_the_table_is_read_without_a_question(tmp_path: Path, *, several: bool) -> None:
    """Whatever the classes are called, and with several labels for each image."""
    write_images(tmp_path, 24)
    names = ("red rose", "white rose", "red tulip", "label", "null", "a|b", "1", "smith, john")
    table = AnswersTable(tmp_path / "labels.csv", "multi_label" if several else None)
    expected = {}
    for number in range(24):
        chosen = {names[number % 8], *names[number % 3 : number % 3 + several]}
        labels = () if several and number < 3 else tuple(sorted(chosen))
        expected[f"{number:03d}.png"] = labels
        table.append([Answer(f"{number:03d}.png", "label", labels, "ada", now(), "random")])
    listing = ImageTable(TableConfig(), SourceContext(str(table.file), tmp_path)).list_images()
    assert listing.left_out == []
    assert set(listing.columns) == {ANSWER_SOURCE}  # who labelled an image is no property of it
    read = {image.path: image.labels or (image.label,) for image in listing.images}
    if several:
        read = {image.path: image.labels or () for image in listing.images}
    assert read == expected


@pytest.mark.slow
def test_a_run_trains_on_the_table(tmp_path: Path) -> None:
    """Forty answers on the page, then `patchline run labels.csv`, with no question."""
    folder = write_images(tmp_path / "inbox", 40)
    with labelling(folder, "--classes", "rose,tulip") as page:
        for number in range(40):
            [image] = page.next(ADA)
            label = ("rose", "tulip")[number % 2]
            assert page.answer(ADA, [image["id"]], label).status == HTTPStatus.OK
    flags = ("--preset", "none", "--training.epochs", "1", "--json")
    run = patchline("run", str(folder / "labels.csv"), *flags, cwd=tmp_path)
    assert run.code == 0, run.err
    assert run.json["name"] == "inbox"


@pytest.mark.slow
def test_findings_of_a_table_are_corrected_and_trained_on(tmp_path: Path) -> None:
    """Train, inspect with the model, correct two of a table's labels, and train on it again."""
    photos = tmp_path / "photos"
    photos.mkdir()
    rows = ["path,label"]
    for number in range(60):
        Image.fromarray(draw_photo(number % 3, number)).save(photos / f"{number:03d}.png")
        rows.append(f"photos/{number:03d}.png,{('across', 'down', 'rising')[number % 3]}")
    shutil.copy(photos / "000.png", photos / "copy.png")
    rows.append("photos/copy.png,down")  # the model need not be good to find this
    table = tmp_path / "stripes.csv"
    table.write_text("\n".join(rows) + "\n")
    flags = ("--preset", "none", "--training.epochs", "2", "--json")
    first = patchline("run", "stripes.csv", *flags, cwd=tmp_path)
    assert first.code == 0, first.err
    check = ("--check-labels", "stripes@champion", "--out", "inspected")
    inspected = patchline("data", "inspect", "stripes.csv", *check, "--json", cwd=tmp_path)
    assert inspected.code == 0, inspected.err
    arguments = ("--findings", "inspected", "--table", "stripes.csv")
    answered = []
    for _ in range(2):  # the second start continues the round
        with labelling(photos, *arguments) as page:
            [image] = page.next(ADA)
            assert image["labels"], "the label at present is shown"
            assert page.answer(ADA, [image["id"]], "rising").status == HTTPStatus.OK
            answered.append(f"photos/{image['name']}")
            assert page.progress()["labeled"] == len(answered)
    found = {row["path"]: row for row in rows_of(table)}
    assert len(found) == 61
    assert len(set(answered)) == 2
    corrected = [found[path] for path in answered]
    assert [(row["label"], row["source"]) for row in corrected] == [("rising", "finding")] * 2
    assert sum(row["source"] == "table" for row in found.values()) == 59
    again = patchline("run", "stripes.csv", *flags, cwd=tmp_path)
    assert again.code == 0, again.err
