"""Hints that say what to install: they work in a checkout, and wherever Stentor came from."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HINT = re.compile(r"pip install ((?:'[^']+'|[a-z][\w-]*)(?: '[^']+')*)")


def hints():
    for path in sorted((ROOT / "src").glob("**/*.py")):
        for match in HINT.finditer(path.read_text()):
            yield pytest.param(match[1], id=f"{path.stem}-{match.start()}")


def known() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["dependencies"]).union(*project["optional-dependencies"].values())


def name_of(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0]


@pytest.mark.parametrize("packages", list(hints()))
def test_a_hint_names_packages_that_stentor_asks_for_and_not_stentor_itself(packages):
    """`pip install 'stentor[spark]'` in a checkout would ask an index for whatever it has under that name."""
    for requirement in re.findall(r"[^' ]+", packages):
        assert name_of(requirement) in {name_of(one) for one in known()}, requirement


def test_there_are_hints():
    assert len(list(hints())) >= 6
