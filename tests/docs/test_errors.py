"""The page of errors is that of the code, and every error says when it is raised and what to do."""

import inspect
import re
from pathlib import Path

import pytest

import stentor
from stentor import error_root, errors, request_errors, work_errors

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
BRANCHES = {module.__name__ for module in (error_root, errors, request_errors, work_errors)}
KINDS = sorted(
    (kind for kind in errors.BY_CODE.values() if kind.__module__ in BRANCHES), key=lambda kind: kind.__name__
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_says_when_it_is_raised_and_what_to_do(kind):
    meaning, *advice = inspect.cleandoc(vars(kind)["__doc__"]).split("\n\n")
    assert meaning.endswith(".")
    assert len(advice) == 1
    assert advice[0].endswith(".")
    assert getattr(stentor, kind.__name__) is kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_page_has_it_in_the_tree_and_in_the_table(kind):
    tree = PAGE.split("```text\n")[1].split("```")[0]
    assert re.search(rf"\b{kind.__name__}\b", tree)
    row = re.search(rf"^\| `{kind.__name__}` \| `{kind.code}` \| .* \| (yes|no) \|$", PAGE, re.MULTILINE)
    assert row is not None
    assert (row[1] == "yes") == kind.retriable
