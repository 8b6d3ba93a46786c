import json
import signal
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest

from stentor.cli.app import run


def test_describe_is_an_overview(cli, client, running_broker):
    client.publish("overview", "x")
    out = cli("describe").out
    assert running_broker.info.id in out
    assert running_broker.url in out
    assert "overview" in out
    found = json.loads(cli("describe", "--json").out)
    assert found["broker"]["id"] == running_broker.info.id
    assert "overview" in [topic["name"] for topic in found["topics"]]
    assert found["statistics"]["broker"]["connections"] >= 1


def test_clients_shows_names_and_what_they_do(cli, running_broker):
    with running_broker.client(name="inventory") as other, other.subscribe("watched.topic"):
        out = cli("clients").out
        found = json.loads(cli("clients", "--json").out)
    [line] = [line for line in out.splitlines() if line.startswith("inventory")]
    assert "watched.topic" in line
    assert any(line.startswith("stentor clients@") for line in out.splitlines())
    assert "inventory" in [client["name"] for client in found]


def test_doctor_finds_nothing_wrong_with_a_good_connection(cli, client):
    client.publish("healthy", "x")
    checked = cli("doctor")
    assert checked.code == 0, checked.out
    assert "all is well" in checked.out
    assert "round trip" in checked.out
    assert "ready" in checked.out


def test_doctor_checks_a_data_directory(cli, running_broker, monkeypatch):
    monkeypatch.delenv("STENTOR_URL")
    done = cli("doctor", "--data", str(running_broker.data_directory))
    assert done.code == 0, done.out
    assert "verified" in done.out


def test_doctor_with_a_directory_looks_at_nothing_else(cli, running_broker, monkeypatch):
    monkeypatch.setenv("STENTOR_URL", "127.0.0.1:1")
    done = cli("doctor", "--data", str(running_broker.data_directory), "--timeout", "2")
    assert done.code == 0, done.out
    assert "127.0.0.1:1" not in done.out
    assert "127.0.0.1:1" in cli("doctor", "--timeout", "2").out


@pytest.mark.parametrize("command", [("doctor",), ("topic", "list")])
def test_a_port_of_http_is_told_from_one_for_clients(cli, running_broker, command):
    failed = cli(*command, "--url", running_broker.http_url.removeprefix("http://"), "--timeout", "5")
    assert failed.code == 1
    assert "This looks like an HTTP port" in failed.out + failed.err
    assert "7440" in failed.out + failed.err


def test_brokers_are_listed_with_all_that_programs_wait_for(cli, running_broker, client):
    client.create_topic("held", exist_ok=True)
    heading, line = cli("broker", "list").out.splitlines()
    assert heading.split()[:2] == ["BROKER", "ADDRESS"]
    assert line.split()[0] == running_broker.info.id
    assert "heard" in line
    [found] = json.loads(cli("broker", "list", "--json").out)
    assert found["info"]["id"] == running_broker.info.id
    assert (found["draining"], found["view"], found["controller"]) == (False, "heard", True)
    assert found["replicas"] >= 1


def test_a_broker_is_drained_and_takes_replicas_again(cli, running_broker, client):
    name = running_broker.info.id
    assert cli("broker", "drain", name) == (0, f"{name} is being drained\n", "")
    assert [state.draining for state in client.brokers()] == [True]
    assert cli("broker", "undrain", name) == (0, f"{name} takes replicas again\n", "")
    assert [state.draining for state in client.brokers()] == [False]
    unknown = cli("broker", "drain", "nobody")
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "There is no broker nobody." in unknown.err


def test_forgetting_a_broker_is_confirmed_and_refused_while_it_runs(cli, running_broker):
    name = running_broker.info.id
    asked = "needs a confirmation, and there is no terminal to ask on. Add --yes."
    assert cli("broker", "forget", name) == (2, "", f"stentor: Forgetting {name} {asked}\n")
    refused = cli("broker", "forget", name, "--yes")
    assert refused.code == 2
    assert "is running" in refused.err


def test_a_broker_that_is_gone_is_forgotten(monkeypatch, capsys):
    forgotten = []
    client = MagicMock(forget_broker=forgotten.append)
    monkeypatch.setattr("stentor.cli.options.connect", lambda *_: nullcontext(client))
    assert run(["broker", "forget", "broker4", "--yes"]) == 0
    assert forgotten == ["broker4"]
    assert capsys.readouterr().out == "forgot broker4\n"


def test_doctor_names_what_is_wrong_and_exits_with_1(cli, tmp_path, monkeypatch):
    missing = cli("doctor", "--data", str(tmp_path / "missing"), "--url", "127.0.0.1:1", "--timeout", "2")
    assert missing.code == 1
    assert "directory does not exist" in missing.out
    assert "127.0.0.1:1" in missing.out
    assert "2 errors" in missing.out
    findings = json.loads(cli("doctor", "--data", str(tmp_path / "missing"), "--url", "127.0.0.1:1", "--json").out)
    assert [finding["severity"] for finding in findings] == ["error", "error"]


def test_doctor_checks_every_address_by_itself(cli, running_broker):
    good = running_broker.url.removeprefix("stentor://")
    done = cli("doctor", "--url", f"{good},127.0.0.1:1", "--timeout", "5")
    assert done.code == 1
    assert f"ok       {good}: Connected" in done.out
    assert "ERROR    127.0.0.1:1" in done.out


@pytest.mark.slow
def test_bench_counts_and_verifies_every_message(cli, client):
    done = cli("bench", "--seconds", "0.5", "--subscribers", "2", "--producers", "2", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["verified"]
    assert found["delivered"] == 2 * found["published"] > 0
    assert found["latency_us"]["p50"] > 0
    assert client.topics("bench.*") == []


@pytest.mark.slow
def test_bench_at_a_rate_sends_exactly_that_many(cli):
    done = cli("bench", "--seconds", "0.5", "--rate", "1000", "--one-by-one", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["published"], found["delivered"]) == (500, 500)
    assert found["acknowledged_us"]["p50"] > 0


def test_bench_refuses_messages_too_small_to_check(cli):
    failed = cli("bench", "--size", "5")
    assert failed.code == 2
    assert "20 bytes" in failed.err


def test_bench_refuses_messages_that_no_broker_takes(cli, client):
    failed = cli("bench", "--size", "99999999")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err == "stentor: --size 99,999,999 is too large. A message's value has at most 8,388,608 bytes.\n"
    assert client.topics("bench.*") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_bench_takes_its_topic_with_it_when_it_is_told_to_end(shell, client, wait_until, number, code):
    process = shell("bench", "--seconds", "60", "--subscribers", "0", "--rate", "1")
    wait_until(lambda: client.topics("bench.*"), "the topic of the benchmark", seconds=30)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, b"")
    assert client.topics("bench.*") == []


def test_serve_prints_one_line_when_ready_and_stops_gracefully(shell, tmp_path):
    process = shell("serve", "--data", str(tmp_path / "d"), "--port", "0", "--http-port", "0")
    line = process.stdout.readline().decode()
    assert line.startswith("stentor ready on stentor://127.0.0.1:")
    assert "  http://127.0.0.1:" in line
    assert line.endswith(f"  data {tmp_path / 'd'}\n")
    process.send_signal(signal.SIGTERM)
    rest, err = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, b"")
    assert b"Traceback" not in err


def test_serve_takes_settings_from_flag_then_environment_then_file(shell, tmp_path):
    file = tmp_path / "stentor.toml"
    file.write_text('host = "127.0.0.3"\nport = 0\nhttp = false\ndata_directory = "unused"\n')
    environment = {"STENTOR_HOST": "127.0.0.2", "STENTOR_DATA_DIRECTORY": str(tmp_path / "e")}
    process = shell("serve", "--config", str(file), "--data", str(tmp_path / "d"), environment=environment)
    line = process.stdout.readline().decode()
    assert line.startswith("stentor ready on stentor://127.0.0.2:")
    assert "http" not in line
    assert line.endswith(f"  data {tmp_path / 'd'}\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--port", "99999"), b"port"),
        (("--flush", "sometimes"), b"flush"),
        (("--config", "/no/such/file.toml"), b"/no/such/file.toml"),
        (("--data", "/dev/null"), b"/dev/null"),
        (("--host", "203.0.113.1", "--port", "0"), b"203.0.113.1"),
    ],
)
def test_a_broker_that_cannot_start_says_why_in_one_sentence(shell, tmp_path, arguments, expected):
    process = shell("serve", "--data", str(tmp_path / "d"), "--port", "0", "--http-port", "0", *arguments)
    out, err = process.communicate(timeout=30)
    assert process.returncode in {1, 2}
    assert out == b""
    assert b"Traceback" not in err
    complaint = err.splitlines()[-1]
    assert complaint.startswith(b"stentor: ")
    assert expected in complaint


def test_a_port_in_use_is_one_sentence(shell, running_broker, tmp_path):
    port = running_broker.url.rpartition(":")[2]
    process = shell("serve", "--data", str(tmp_path / "d"), "--port", port, "--http-port", "0")
    _, err = process.communicate(timeout=30)
    complaint = err.splitlines()[-1].decode()
    assert process.returncode in {1, 2}
    assert complaint.startswith("stentor: ")
    assert port in complaint
    assert "--port" in complaint


@pytest.mark.parametrize("url", ["stentor://ann:s3cret@localhost", "ann:s3cret@localhost:7440", "http://ann:s3cret@b"])
@pytest.mark.parametrize("command", [("doctor",), ("describe",)])
def test_a_password_in_a_url_is_refused_and_not_repeated(cli, command, url, monkeypatch):
    for refused in (cli(*command, "--url", url), monkeypatch.setenv("STENTOR_URL", url) or cli(*command)):
        assert refused.code != 0
        assert "holds a user or a password" in refused.out + refused.err
        assert "s3cret" not in refused.out + refused.err


def test_a_subscription_that_makes_a_topic_says_so_on_standard_error(cli, client):
    client.create_topic("is.there", exist_ok=True)
    done = cli("subscribe", "is.there", "is.theer", "no.pattern.*", "--idle", "0.1")
    assert done.code == 0
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "Topic is.theer did not exist, so it was created." in done.err
    assert cli("subscribe", "is.theer", "--idle", "0.1").err == ""


def test_doctor_calls_logs_by_their_topics(cli, running_broker, client, monkeypatch):
    monkeypatch.delenv("STENTOR_URL")
    client.publish("called.by.name", "x")
    out = cli("doctor", "--data", str(running_broker.data_directory)).out
    [line] = [line for line in out.splitlines() if "called.by.name" in line]
    assert f"called.by.name/0 (partitions/{client.describe_topic('called.by.name').id:016x}-0)" in line
