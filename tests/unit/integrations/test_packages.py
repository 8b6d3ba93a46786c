"""What is said where a framework is not installed."""

import importlib
import sys

import pytest

from stentor.errors import MissingPackage


@pytest.mark.parametrize(
    ("module", "package", "requirement"),
    [
        ("taskiq", "taskiq", "taskiq>="),
        ("dramatiq", "dramatiq", "dramatiq>="),
        ("kombu", "kombu", "celery>="),
        ("opentelemetry", "opentelemetry", "opentelemetry-api>="),
    ],
)
def test_a_missing_framework_is_named_with_what_to_install(monkeypatch, module, package, requirement):
    class Without:
        """An installation without the package."""

        @staticmethod
        def find_spec(name, *_):
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Without, *sys.meta_path])
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.delitem(sys.modules, f"stentor.integrations.{module}", raising=False)
    with pytest.raises(MissingPackage, match="is not installed") as raised:
        importlib.import_module(f"stentor.integrations.{module}")
    assert requirement in raised.value.hint
