"""`patchline label` as people use it: two at a time, killed, attacked, and its table trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.data.labels.answer_columns import ANSWER_SOURCE
from patchline.pipeline.data.labels.answers.answer import Answer, check_class, now
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
from patchline.pipeline.errors import ConfigError
from patchline.plugin_api import SourceContext
from patchline.plugins.data_sources.table import ImageTable, TableConfig
from tests.conftest import patchline_here
from tests.made.servers import Command
from tests.plugins.tools.label.labelled import labelling, page_here, rows_of, write_images

ADA, BOB = "ada-00000001", "bob-00000002"
TOKEN = "0123456789abcdef0123"  # noqa: S105 - it guards nothing


def test_two_people_never_get_the_same_image_even_if_the_server_is_killed(tmp_path: Path) -> None:
    """Each answer that is confirmed is in the table; what is on a screen stays there.

    The command asks for the token of its file.
    """
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    headers, command = {"authorization": f"Bearer {TOKEN}"}, ("--token-file", str(token))
    folder = write_images(tmp_path / "inbox", 20, side=8)
    with labelling(folder, "--classes", "rose, tulip", *command, headers=headers) as page:
        held = [image["id"] for image in page.next(ADA, 3)]
        assert page.ready["table"] == str(folder / "labels.csv")
        assert page.ask("GET", "/progress").status == 401
        progress = page.progress()
        assert [each["name"] for each in progress["classes"]] == ["rose", "tulip"]
        assert progress["order"].startswith("random, because")
        others = [image["id"] for image in page.next(BOB, 3)]
        assert page.answer(ADA, held[:1], "rose").status == 200
        assert page.answer(BOB, held[1:2], "rose").status == 409
        page.process.kill()
        page.process.wait()
    [row] = rows_of(folder / "labels.csv")
    assert (row["label"], row["labeled_by"], row["source"]) == ("rose", "ada", "random")
    with page_here(folder) as page:  # the classes are remembered, too
        seen = {image["id"] for image in page.next(BOB, 8, others)}
        assert not (seen | set(others)) & set(held)
        assert page.answer(ADA, held[1:2], "tulip").status == 200
        undone = page.post("/undo", client=ADA, person="ada").json
        assert [image["id"] for image in undone["images"]] == held[1:2]
        page.post("/answer", client=ADA, person="ada", ids=held[2:3], verdict="unsure")
        assert page.progress()["unsure"] == 1
    assert [row["label"] for row in rows_of(folder / "labels.csv")] == ["rose"]


def test_a_table_that_a_person_edits_is_imported(run_here: Command, tmp_path: Path) -> None:
    """The command tells the outcome of each row."""
    folder = write_images(tmp_path / "inbox", 3)
    table = AnswersTable(folder / "labels.csv")
    for number in range(2):
        table.append([Answer(f"00{number}.png", "label", ("rose",), "ada", now(), "random")])
    edited = table.file.read_text().replace("rose", "tulip", 1) + "002.png,iris\ntypo.png,iris\n"
    table.file.write_text(edited)
    found = patchline_here("label", folder, "--import", table.file, "--json", cwd=tmp_path)
    assert found.code == 0, found.err
    outcome = {"taken": ["000.png", "002.png"], "older": [], "unknown": ["typo.png"]}
    assert found.json == {"table": str(table.file), "rows": 4, "columns": []} | outcome
    [kept] = folder.glob("labels.edited-*.csv")
    assert kept.name in found.err
    labels = {row["path"]: row["label"] for row in rows_of(table.file)}
    assert labels == {"000.png": "tulip", "001.png": "rose", "002.png": "iris"}
    wrong = run_here.refusal("label", folder, "--import", folder / "000.png")
    assert "Give a CSV table with the columns path and label." in wrong


def test_every_image_is_asked_about_once_and_new_ones_join(tmp_path: Path) -> None:
    """Skipped ones come at the end; a file that is no image is named once, and left out."""
    folder = write_images(tmp_path / "inbox", 4)
    with page_here(folder, "rose") as page:
        [first] = page.next(ADA)
        page.post("/answer", client=ADA, person="ada", ids=[first["id"]], verdict="skip")
        asked = []
        while images := page.next(ADA):
            asked.append(images[0]["id"])
            assert page.answer(ADA, asked[-1:], "rose").status == 200
        assert asked[-1] == first["id"]
        assert len(set(asked)) == len(asked) == len(rows_of(folder / "labels.csv")) == 4
        (folder / "broken.png").write_text("not an image")
        write_images(folder, 5)
        new = page.post("/next", client=ADA, count=3, look_again=True).json["images"]
        assert sorted(each["name"] for each in new) == ["004.png", "broken.png"]
        [broken] = [each for each in new if each["name"] == "broken.png"]
        reply = page.ask("GET", f"/image/{broken['id']}")
        assert reply.status == 422
        assert reply.json["error"].startswith("broken.png cannot be read: ")
        assert page.progress()["unreadable"] == 1
        assert [each["name"] for each in page.next(ADA, 3)] == ["004.png"]


def test_hostile_requests_change_nothing(run_here: Command, tmp_path: Path) -> None:
    """No path leaves the folder, no other page writes, and nothing is shown without the token."""
    folder = write_images(tmp_path / "inbox", 3)
    (tmp_path / "secret.txt").write_text("secret")
    refused = run_here.refusal("label", folder, "--host", "0.0.0.0")  # noqa: S104
    assert "lets other machines label the images, which needs a token" in refused
    token, as_json = {"authorization": f"Bearer {TOKEN}"}, {"content-type": "application/json"}
    own, wrong = {**token, **as_json}, {**as_json, "authorization": "Bearer " + "x" * 20}
    body, many = b'{"name": "rose"}', b'{"reviewed": [0' + b",0" * 20_000 + b"]}"
    requests: list[tuple[int, str, bytes | None, dict[str, str]]] = [
        (404, "/image/..%2f..%2fsecret.txt", None, token),
        (404, "/static/../../../../session.py", None, token),
        (404, "/static/%2e%2e/application.py", None, token),
        (403, "/classes", body, {**own, "origin": "https://elsewhere.example"}),
        (403, "/classes", body, {**own, "sec-fetch-site": "cross-site"}),
        (403, "/classes", body, {**own, "host": "elsewhere.example"}),
        (415, "/classes", body, {**token, "content-type": "text/plain"}),
        (401, "/classes", body, as_json),
        (401, "/classes", body, wrong),
        (401, f"/image/{'0' * 16}", None, {}),
        (413, "/classes", b'"' + b"x" * 300_000 + b'"', own),
        (413, "/next", many, own),
        (400, "/classes", b'{"name": "a", "path": "/etc"}', own),
    ]
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    with page_here(folder, headers=token, host="0.0.0.0", token_file=secret) as page:  # noqa: S104
        [image] = page.next(ADA)
        requests.append((400, f"/image/{image['id']}?side=32{'0' * 5000}", None, token))
        for status, path, content, headers in requests:
            assert page.ask("POST" if content else "GET", path, content, headers).status == status
        assert page.progress()["classes"] == []
        assert page.answer(ADA, [image["id"]], "rose").status == 400
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
        check_class(name, ["rose"])


@pytest.mark.parametrize("several", [False, True])
def test_the_table_is_read_without_a_question(tmp_path: Path, *, several: bool) -> None:
    """Whatever the classes are called, and with several labels for each image."""
    write_images(tmp_path, 16, side=8)
    names = ("red rose", "white rose", "red tulip", "label", "null", "a|b", "1", "smith, john")
    table = AnswersTable(tmp_path / "labels.csv", "multi_label" if several else None)
    expected = {}
    for number in range(16):
        chosen = {names[number % 8], *names[number % 3 : number % 3 + several]}
        expected[f"{number:03d}.png"] = () if several and number < 3 else tuple(sorted(chosen))
    for path, labels in expected.items():
        table.append([Answer(path, "label", labels, "ada", now(), "random")])
    listing = ImageTable(TableConfig(), SourceContext(str(table.file), tmp_path)).list_images()
    assert listing.left_out == []
    assert set(listing.columns) == {ANSWER_SOURCE}  # who labelled an image is no property of it
    images = listing.images
    read = {each.path: each.labels or (() if several else (each.label,)) for each in images}
    assert read == expected
