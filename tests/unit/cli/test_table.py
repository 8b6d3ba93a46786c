import io
import itertools
import json
import signal
import subprocess
import sys
import threading
from zlib import crc32

import pytest

import stentor
from stentor.cli import table, table_lines
from stentor.cli.table_lines import Gathered, parse_line

WAIT_S = 20


@pytest.fixture
def config(client):
    """A table with three keys, as somebody else has it open."""
    client.create_topic("config", kind="table")
    with client.table("config") as table:
        table.put_many({"app/rate": "100", "app/name": "shop", "web": b"\xff\x00"})
        yield table
    client.delete_topic("config")


def value_of(client, table, key):
    with client.table(table) as opened:
        return opened.get(key)


# --- create -------------------------------------------------------------------------------------


def test_create_makes_a_table_that_list_and_describe_show_as_one(cli, client):
    made = cli("table", "create", "made.here", "--partitions", "2")
    assert made.code == 0, made.err
    assert client.describe_topic("made.here").settings.kind == "table"
    assert ["kind", "table"] in [line.split() for line in made.out.splitlines()]
    assert ["kind", "table"] in [line.split() for line in cli("topic", "describe", "made.here").out.splitlines()]
    assert cli("topic", "list", "made.*").out.splitlines()[1].split()[:3] == ["made.here", "table", "2"]
    assert "exists already" in cli("table", "create", "made.here").err
    assert cli("table", "create", "made.here", "--exist-ok", "--json").code == 0
    client.delete_topic("made.here")


def test_a_topic_of_that_name_is_no_table(cli, client):
    client.create_topic("plain")
    refused = cli("table", "create", "plain", "--exist-ok")
    assert refused == (2, "", "stentor: Topic plain exists, and is no table. Choose another name.\n")
    assert cli("table", "list", "plain").err == (
        "stentor: Topic plain is no table. `stentor topic list` shows the kinds.\n"
    )
    client.delete_topic("plain")


def test_topics_can_be_made_as_tables_and_stay_what_they_are(cli, client):
    assert cli("topic", "create", "by.topic", "--kind", "table").code == 0
    assert client.describe_topic("by.topic").settings.kind == "table"
    assert "kind is table, not stream" in cli("topic", "create", "by.topic", "--kind", "stream", "--exist-ok").err
    assert cli("topic", "create", "by.other", "--kind", "sofa").code == 2
    assert "retention would delete keys" in cli("topic", "alter", "by.topic", "--retention-age", "7d").err
    client.delete_topic("by.topic")


# --- get, put, delete ---------------------------------------------------------------------------


def test_get_prints_the_value(cli, config):
    assert cli("table", "get", "config", "app/rate") == (0, "100\n", "")
    assert cli("table", "get", "config", "app/rate", "--raw") == (0, "100", "")
    assert json.loads(cli("table", "get", "config", "web", "--json").out) == {
        "key": "web",
        "value": {"base64": "/wA="},
        "version": config.entry("web").version,
    }


def test_a_key_that_is_not_there_is_a_failure(cli, config):
    assert cli("table", "get", "config", "nope") == (
        1,
        "",
        "stentor: Table config has no key nope. `stentor table list config` shows the keys.\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "nowhere", "key"),
        ("put", "nowhere", "key", "value"),
        ("delete", "nowhere", "key"),
        ("list", "nowhere"),
        ("watch", "nowhere"),
        ("dump", "nowhere"),
        ("load", "nowhere"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_table_that_is_not_there_is_a_failure_and_stays_away(cli, client, arguments):
    code, out, err = cli("table", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("stentor: There is no table nowhere. Make it with `stentor table create nowhere`")
    assert client.topics("nowhere") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("get", "config", "/x"), "'/x' is no key of a table"),
        (("put", "config", "x/", "1"), "'x/' is no key of a table"),
        (("delete", "config", ""), "'' is no key of a table"),
        (("list", "config", "--subtree", "app"), "Use a path that ends with a slash, such as 'app/'"),
        (("watch", "config", "--subtree", "/"), "is no subtree"),
        (("put", "config", "x", "1", "--if-version", "1", "--if-absent"), "cannot be used together"),
        (("put", "config", "\udcff", "1"), "A key is not valid text"),
        (("get", "con fig", "x"), "con fig"),
    ],
    ids=["get", "put", "delete", "list", "watch", "both", "bytes", "name"],
)
def test_what_is_mistyped_is_said_before_anything_is_asked(cli, monkeypatch, arguments, said):
    monkeypatch.setenv("STENTOR_URL", "localhost:1")
    code, out, err = cli("table", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_put_sets_a_key_and_says_its_version(cli, config, client):
    done = cli("table", "put", "config", "app/rate", "200")
    config.sync()
    entry = config.entry("app/rate")
    assert done == (0, f"config app/rate version {entry.version}\n", "")
    assert entry.value == b"200"
    assert json.loads(cli("table", "put", "config", "app/rate", "201", "--json").out) == {
        "table": "config",
        "key": "app/rate",
        "version": entry.version + 1,
    }
    assert cli("table", "put", "config", "app/rate", "202", "--quiet") == (0, "", "")


def test_put_takes_standard_input_as_it_is(cli, config, client):
    assert cli("table", "put", "config", "blob", stdin=b"\x00\xff\n").code == 0
    assert value_of(client, "config", "blob") == b"\x00\xff\n"


def test_a_value_that_is_too_large_is_refused(cli, config, monkeypatch):
    monkeypatch.setattr("stentor.cli.table.MESSAGE_VALUE_BYTES_MAX", 3)
    code, _, err = cli("table", "put", "config", "blob", stdin=b"four")
    assert code == 1
    assert "Standard input has more than 3 bytes" in err


def test_put_with_a_condition_says_what_is_there_instead(cli, config, client):
    version = config.entry("app/rate").version
    assert cli("table", "put", "config", "app/rate", "101", "--if-version", str(version)).code == 0
    config.sync()
    newer = config.entry("app/rate").version
    code, out, err = cli("table", "put", "config", "app/rate", "102", "--if-version", str(version))
    assert (code, out) == (1, "")
    assert err.startswith(
        f"stentor: app/rate of table config was not changed: it is at version {newer}, not at {version}."
    )
    assert "it had to be absent" in cli("table", "put", "config", "app/rate", "103", "--if-absent").err
    assert "it is not there" in cli("table", "put", "config", "gone", "1", "--if-version", "3").err
    assert value_of(client, "config", "app/rate") == b"101"
    assert cli("table", "put", "config", "fresh", "1", "--if-absent").code == 0


def test_delete_removes_a_key(cli, config):
    version = config.entry("app/rate").version
    assert cli("table", "delete", "config", "app/rate", "--if-version", "99").code == 1
    assert cli("table", "delete", "config", "app/rate", "--if-version", str(version)) == (
        0,
        "deleted app/rate of config\n",
        "",
    )
    assert cli("table", "delete", "config", "app/rate") == (0, "config has no key app/rate\n", "")
    config.sync()
    assert "app/rate" not in config


# --- keys that expire ---------------------------------------------------------------------------


def test_put_gives_a_key_a_time_and_touch_begins_it_anew(cli, config):
    assert cli("table", "put", "config", "busy", "yes", "--ttl", "600").code == 0
    config.sync()
    assert config.entry("busy").ttl == 600
    assert cli("table", "touch", "config", "busy") == (0, "busy of config stays for 600 s\n", "")
    assert cli("table", "touch", "config", "busy", "--quiet") == (0, "", "")
    missing = cli("table", "touch", "config", "nope")
    assert (missing.code, missing.out) == (1, "")
    assert "Table config has no key nope" in missing.err
    stays = cli("table", "touch", "config", "web")
    assert stays.code == 2
    assert "web of table config has no ttl" in stays.err
    assert "--ttl=0" in cli("table", "put", "config", "a", "1", "--ttl", "0").err


def test_list_shows_times_where_there_are_some(cli, config):
    assert "TTL" not in cli("table", "list", "config").out
    config.put("busy", "yes", ttl=1.5)
    config.put("me", "here", ephemeral=True, grace=600)
    config.touch("busy")
    lines = [line.split() for line in cli("table", "list", "config", "--values").out.splitlines()]
    assert lines[0] == ["KEY", "VERSION", "SIZE", "TTL", "VALUE"]
    assert ["600", "s", "here"] in [line[-3:] for line in lines]
    found = {each["key"]: each for each in json.loads(cli("table", "list", "config", "--json").out)}
    assert (found["me"]["ttl"], found["me"]["ephemeral"], "ttl" in found["web"]) == (600, True, False)


@pytest.fixture
def expiring(config):
    """Somebody puts a key that expires, again and again."""
    stop = threading.Event()

    def put():
        while not stop.wait(0.05):
            if "busy" not in config:
                config.put("busy", "yes", ttl=0.1)

    thread = threading.Thread(target=put)
    thread.start()
    yield
    stop.set()
    thread.join(WAIT_S)


def test_watch_says_what_expired(cli, expiring):
    lines = cli("table", "watch", "config", "--count", "2").out.splitlines()
    assert "expired  busy" in lines
    told = map(json.loads, cli("table", "watch", "config", "--count", "2", "--json").out.splitlines())
    assert {change["new"] is None: change.get("expired", False) for change in told} == {False: False, True: True}


def test_a_dump_has_times_and_load_gives_them(cli, client, config, tmp_path):
    config.put("busy", "yes", ttl=600)
    dumped = cli("table", "dump", "config").out
    assert '{"key":"busy","value":"yes","version":3,"ttl":600.0}' in dumped.splitlines()
    file = tmp_path / "dump"
    file.write_text(dumped + '{"key": "soon", "value": "1", "ttl": 500}\n{"key": "late", "value": "1"}\n')
    client.create_topic("loaded", kind="table")
    assert cli("table", "load", "loaded", str(file)).code == 0
    with client.table("loaded") as loaded:
        ttls = {entry.key: entry.ttl for entry in loaded.entries()}
    assert {key: ttl for key, ttl in ttls.items() if ttl is not None} == {"busy": 600, "soon": 500}
    assert len(ttls) == 6
    file.write_text('{"key": "soon", "value": "1", "ttl": -1}\n')
    assert "ttl=-1 must be above 0" in cli("table", "load", "loaded", str(file)).err
    client.delete_topic("loaded")


# --- list and watch -----------------------------------------------------------------------------


def test_list_is_sorted_and_has_versions_and_sizes(cli, config):
    lines = [line.split() for line in cli("table", "list", "config").out.splitlines()]
    assert lines[0] == ["KEY", "VERSION", "SIZE"]
    assert [line[0] for line in lines[1:]] == ["app/name", "app/rate", "web"]
    assert lines[1][1:] == [str(config.entry("app/name").version), "4", "B"]


def test_list_shows_values_and_subtrees_when_asked(cli, config):
    lines = cli("table", "list", "config", "--subtree", "app/", "--values").out.splitlines()
    assert [line.split()[-1] for line in lines] == ["VALUE", "shop", "100"]
    found = json.loads(cli("table", "list", "config", "--values", "--json").out)
    assert found[2] == {
        "key": "web",
        "version": config.entry("web").version,
        "size": 2,
        "value": {"base64": "/wA="},
    }
    assert "value" not in json.loads(cli("table", "list", "config", "--json").out)[0]


@pytest.fixture
def changing(config):
    """Somebody who goes on changing a table until the test is over."""
    ended = threading.Event()

    def work():
        for number in range(1_000_000):
            if ended.is_set():
                return
            config.put("other", str(number))
            config.put("app/rate", str(number))
            config.delete("app/rate")

    thread = threading.Thread(target=work)
    thread.start()
    yield config
    ended.set()
    thread.join(WAIT_S)


def test_watch_prints_changes_of_a_subtree(cli, changing):
    code, out, err = cli("table", "watch", "config", "--subtree", "app/", "--count", "4")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert len(lines) == 4
    assert {line[1] for line in lines} == {"app/rate"}
    assert {line[0] for line in lines} == {"put", "deleted"}
    assert all(line[2] == "version" for line in lines if line[0] == "put")


def test_watch_prints_json_with_what_was_and_what_is(cli, changing):
    out = cli("table", "watch", "config", "--subtree", "app/", "--count", "3", "--json").out
    changes = [json.loads(line) for line in out.splitlines()]
    for before, after in itertools.pairwise(changes):
        assert before["new"] == after["old"]
    assert sorted(changes[0]) == ["key", "new", "old"]


def test_watch_stops_when_nothing_happens(cli, config):
    assert cli("table", "watch", "config", "--idle", "0.01") == (0, "", "")


def test_watch_ends_with_ctrl_c(shell, changing):
    process = shell("table", "watch", "config")
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130


def test_watch_ends_when_nobody_reads_it(shell, config):
    process = shell("table", "watch", "config")
    process.stdout.close()
    assert process.wait(WAIT_S) == 0


def test_watch_says_that_the_table_was_deleted(shell, client):
    client.create_topic("leaving", kind="table")
    process = shell("table", "watch", "leaving")
    with client.table("leaving") as table:
        ended = threading.Event()
        thread = threading.Thread(target=keep_putting, args=(table, ended))
        thread.start()
        assert process.stdout.readline()
        ended.set()
        thread.join(WAIT_S)
    client.delete_topic("leaving")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert err.startswith(b"stentor: ")
    assert b"leaving" in err


def keep_putting(table, ended):
    while not ended.is_set():
        table.put("x", "1")


# --- dump and load ------------------------------------------------------------------------------


def test_dump_and_load_move_a_table(cli, config, client):
    dumped = cli("table", "dump", "config")
    assert dumped.code == 0
    lines = [json.loads(line) for line in dumped.out.splitlines()]
    assert [(line["key"], line["value"]) for line in lines] == [
        ("app/name", "shop"),
        ("app/rate", "100"),
        ("web", {"base64": "/wA="}),
    ]
    assert lines[1]["version"] == config.entry("app/rate").version

    client.create_topic("moved", kind="table", partitions=3)
    done = cli("table", "load", "moved", stdin=dumped.out)
    assert done.code == 0, done.err
    assert done.out.startswith("loaded 3 keys into moved (")
    with client.table("moved") as moved:
        assert dict(moved) == dict(config)
    client.delete_topic("moved")


def test_dump_may_be_of_a_subtree(cli, config):
    lines = cli("table", "dump", "config", "--subtree", "app/").out.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["app/name", "app/rate"]


def test_a_table_moves_through_a_pipe(shell, config, client):
    client.create_topic("piped", kind="table")
    dump = shell("table", "dump", "config")
    load = shell("table", "load", "piped", "--json", stdin=dump.stdout)
    out, err = load.communicate(timeout=WAIT_S)
    assert load.returncode == 0, err
    assert json.loads(out)["keys"] == 3
    with client.table("piped") as piped:
        assert dict(piped) == dict(config)
    client.delete_topic("piped")


def test_load_takes_files_and_null_deletes(cli, config, client, tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text('{"key": "app/rate", "value": null}\n\n{"key": "n", "value": {"a": 1}}\n')
    two.write_text('{"key": "n", "value": "last"}')
    assert cli("table", "load", "config", str(one), str(two), "--quiet") == (0, "", "")
    with client.table("config") as table:
        assert dict(table) == {"app/name": b"shop", "web": b"\xff\x00", "n": b"last"}
    code, _, err = cli("table", "load", "config", str(tmp_path / "none.jsonl"))
    assert (code, "none.jsonl cannot be read" in err) == (2, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense", "Standard input line 7 is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"key": "a"}', "has no field 'value'"),
        (b'{"value": "a"}', "has no field 'key'"),
        (b'{"key": "a", "value": "b", "age": 3}', "has the unknown field 'age'"),
        (b'{"key": "/a", "value": "b"}', "has what no table takes: '/a' is no key of a table."),
        (b'{"key": 3, "value": "b"}', "has what no table takes: A key of a table is text, not int."),
        (b'{"key": "a", "value": {"base64": "?"}}', "has bad base64"),
    ],
    ids=["nonsense", "list", "no value", "no key", "unknown", "bad key", "number", "base64"],
)
def test_a_line_that_is_no_entry_is_named(line, said):
    with pytest.raises(stentor.InvalidArgument) as caught:
        parse_line(line, "standard input line 7")
    assert said in caught.value.message


def test_keys_that_stay_for_different_times_are_put_one_after_the_other():
    table = Recorder()
    gathered = Gathered(table)
    for value, ttl in ((b"1", None), (b"2", 5.0), (b"3", 5.0), (None, None), (b"4", None)):
        gathered.add("a", value, ttl)
    gathered.finish()
    assert table.calls == [{"a": b"1"}, ({"a": None}, 5.0), {"a": b"4"}]


def test_load_says_how_far_it_came(cli, config, monkeypatch):
    monkeypatch.setattr(table_lines, "CHANGE_KEYS_MAX", 2)
    lines = "".join(f'{{"key": "k/{number}", "value": ""}}\n' for number in range(5))
    code, out, err = cli("table", "load", "config", stdin=lines + "nonsense\n")
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == "stentor: 4 keys of table config were loaded before this."
    assert second.startswith("stentor: Standard input line 6 is not JSON")
    config.sync()
    assert len(config.entries("k/")) == 4


class Recorder:
    """A table of two partitions that notes what it is told."""

    sequence = (0, 0)

    def __init__(self):
        self.calls = []

    def put_many(self, changes, *, ttl):
        self.calls.append(changes if ttl is None else (changes, ttl))


def test_changes_are_gathered_by_partition_and_size(monkeypatch):
    monkeypatch.setattr(table_lines, "CHANGE_BYTES_MAX", 10)
    table = Recorder()
    gathered = Gathered(table)
    gathered.add("a", b"1234567890")
    gathered.add("a", b"12")
    for key in ("a", "b", "c", "d"):
        gathered.add(key, None)
    gathered.finish()
    assert table.calls[0] == {"a": b"1234567890"}
    assert all(len({crc32(key.encode()) % 2 for key in call}) == 1 for call in table.calls)
    assert sorted(key for call in table.calls[1:] for key in call) == ["a", "b", "c", "d"]
    assert gathered.loaded == 5


def test_help_of_a_command_imports_nothing_heavy():
    script = (
        "import sys\nfrom stentor.cli.app import run\nrun(['table', 'watch', '--help'])\n"
        "print('LOADED', *[name for name in ('pyarrow', 'aiohttp', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]


def test_a_terminal_is_told_to_type(monkeypatch, capsys):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"typed")))
    assert table._standard_input() == b"typed"
    assert capsys.readouterr().err == "Type the value. Press Ctrl-D to end.\n"
