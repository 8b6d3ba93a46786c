"""Which etcd a local cluster gets, and what is said against it."""

import os

import pytest

from stentor.testing import etcd


def a_program(folder, version):
    folder.mkdir(exist_ok=True)
    program = folder / "etcd"
    program.write_bytes(b"#!/bin/sh\necho etcd Version: " + version.encode() + b"\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.2"])
def test_an_etcd_that_can_lose_changes_is_warned_about(tmp_path, version):
    warning = etcd.warning_about(a_program(tmp_path, version))
    assert version in warning
    assert "etcd-server" in warning


@pytest.mark.parametrize("version", ["3.4.23", "3.5.3", "3.5.21", "3.6.0", "nonsense"])
def test_nothing_is_said_against_others(tmp_path, version):
    assert etcd.warning_about(a_program(tmp_path, version)) == ""


def test_a_program_that_cannot_be_run_is_no_reason_to_fail(tmp_path):
    assert etcd.warning_about(tmp_path / "missing") == ""


def test_an_etcd_on_the_path_is_preferred_to_the_wheel(tmp_path, monkeypatch):
    program = a_program(tmp_path / "bin", "3.4.23")
    monkeypatch.setattr(etcd, "_is_script", lambda _: False)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert etcd.find_etcd() == (program, False)
