"""No secret in what is shown: addresses, parameters, headers, the environment, log records."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from patchline.pipeline import redaction
from patchline.pipeline.errors import TrackingError
from patchline.pipeline.redaction import redact_text, split_credentials
from patchline.pipeline.workspace.tracking import tracking_store

PLANTED = "pl4nted"


@pytest.fixture
def redacting() -> Iterator[None]:
    """Let this process redact what it logs, and go back to what was before."""
    before = logging.getLogRecordFactory(), sys.excepthook
    redaction.install()
    yield
    logging.setLogRecordFactory(before[0])
    sys.excepthook = before[1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://anna:pl4nted@host:5000/x", "http://host:5000/x"),
        ("http://anna:pl4@nted@host/x", "http://host/x"),
        ("http://anna:pl4/nted@host", "http://host"),
        ("https://pl4nted@host/x", "https://host/x"),
        ("postgresql://anna:12/pl4nted@host/db", "postgresql://host/db"),
        ("see http://a:pl4nted@h/x, again", "see http://h/x, again"),
        ("https://h/x?a=1&token=pl4nted#c", "https://h/x?a=1&token=***#c"),
        ("https://h/?sv=1&sig=pl4nted", "https://h/?sv=1&sig=***"),
        ("host=h password=pl4nted dbname=d", "host=h password=*** dbname=d"),
        ("api_key='pl4nted'", "api_key='***'"),
        ('{"password": "pl4nted", "n": 1}', '{"password": "***", "n": 1}'),
        ("Authorization: Bearer pl4nted", "Authorization: Bearer ***"),
        ("{'authorization': 'Basic pl4nted'}", "{'authorization': 'Basic ***'}"),
    ],
)
def test_a_secret_is_taken_out(text: str, shown: str) -> None:
    """Whatever signs a password holds, the rest of the text stays, and twice is as good as once."""
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/#/models/flowers@champion?workflowType=machine_learning",
        "http://[::1]:5000/@x",
        "sqlite:////data/a@b/mlflow.db",
        "models:/flowers@champion",
        "class_token=True tokens=25 monkey=3",
        "patch_size 15 does not divide the 224x224 image. Choose a divisor.",
        "basic authentication is missing",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """An `@` in a path, a setting and a sentence are left as they are."""
    assert redact_text(text) == text


def test_the_environment_says_what_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password, a token and an address with a password are hidden wherever they turn up."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "odd p/@ss")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:hush!hush")
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "postgresql://a:qu%40iet@h/d")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    text = "odd p/@ss odd%20p%2F%40ss hush!hush qu@iet qu%40iet 1 false"
    assert redact_text(text) == "*** *** *** *** *** 1 false"


_WORDS = ("1", "digits", "golden_retriever", "cifar10", "IMG_20240101", "2024-11-26", "café")
_DISTINCTIVE = ("s3cr3tpass", "Ab3dE9xQ", "p@ss/word", "correct-horse-battery-staple")


@pytest.mark.parametrize("word", _WORDS)
def test_a_secret_that_is_a_word_or_a_name_leaves_text_alone(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Pages, paths and commands keep their words; beside its key, even such a secret is hidden."""
    monkeypatch.setenv("POSTGRES_PASSWORD", word)
    text = f"trained {word} in /data/{word}/photos: run {word}-vit"
    assert redact_text(text) == text
    assert redact_text(f"password={word} user=a") == "password=*** user=a"
    assert redact_text(f"postgresql://a:{word}@host/db") == "postgresql://host/db"
    assert redact_text(f"Authorization: Bearer {word}") == "Authorization: Bearer ***"


@pytest.mark.parametrize("secret", _DISTINCTIVE)
def test_a_distinctive_secret_is_hidden_anywhere(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """Also inside another word; but what is read back is stored as it is."""
    monkeypatch.setenv("SOME_TOKEN", secret)
    assert redact_text(f"it was x{secret}y and {secret!r}") == "it was x***y and '***'"
    assert redaction.without_credentials(f"/data/{secret}/photos") == f"/data/{secret}/photos"


def test_what_is_stored_loses_only_the_credentials_of_an_address() -> None:
    """Paths with an `@`, an `=` or `://` inside stay; an address keeps host, path and port."""
    for value in ("/data/password=x/a@b", "s3cret", "sqlite:////a/b@c/mlflow.db", "C:\\x"):
        assert redaction.without_credentials(value) == value
    assert redaction.without_credentials("s3://key:pl4nted@bucket/x") == "s3://bucket/x"
    assert (
        redaction.without_credentials("https://h/x?token=pl4nted&a=1")
        == "https://h/x?token=***&a=1"
    )


def test_every_handler_gets_records_without_secrets(
    redacting: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Message, arguments and the trace of an exception, also of libraries."""
    del redacting
    error = ValueError(f"http://anna:{PLANTED}@host")
    logger = logging.getLogger("somebody.else")
    logger.error("failed at %s", f"http://b:{PLANTED}@h/x", exc_info=error, stack_info=True)
    assert "failed at http://h/x" in caplog.text
    assert "ValueError: http://host" in caplog.text
    assert PLANTED not in caplog.text


def test_the_last_words_of_a_process_hold_no_secret() -> None:
    """A warning, a printed line and the trace of what ended it or a thread."""
    script = f"""
import sys, threading, warnings
from patchline.pipeline import redaction
redaction.install(streams=True)
address = "http://anna:{PLANTED}@host"
warnings.warn(address)
print(address, file=sys.stderr)
def fail():
    raise ValueError(address)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""
    code = script.replace(PLANTED, '" + sys.argv[1] + "')  # traces show the line of the source
    done = subprocess.run(
        [sys.executable, "-c", code, PLANTED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("http://host") >= 4
    assert PLANTED not in done.stderr


def test_errors_hold_no_secret() -> None:
    """So neither the terminal, a worker's result nor a state of Prefect gets one."""
    assert str(TrackingError(f"http://a:{PLANTED}@h is away.")) == "http://h is away."


def test_a_login_leaves_the_address_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow gets user and password by the environment, where they were part of the address."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://an%40na:pl4@nt/ed@127.0.0.1:9/mlflow")
    assert tracking_store.use_store() == "http://127.0.0.1:9/mlflow"
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9/mlflow"
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "an@na"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "pl4@nt/ed"  # noqa: S105 - planted
    assert split_credentials("models:/flowers@champion").user is None
