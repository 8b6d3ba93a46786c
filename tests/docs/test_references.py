from pathlib import Path

import pytest

from stentor.cli.reference import REFERENCES

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", REFERENCES)
def test_the_committed_reference_is_what_the_program_says(name, monkeypatch):
    monkeypatch.delenv("STENTOR_URL", raising=False)
    assert (DOCS / name).read_text(encoding="utf-8") == REFERENCES[name](), "run `make docs`"


def test_the_command_reference_has_every_command():
    text = REFERENCES["cli.md"]()
    for command in ("serve", "topic create", "topic delete", "publish", "subscribe", "read", "doctor", "bench"):
        assert f"## stentor {command}\n" in text
