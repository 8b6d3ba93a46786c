import pytest

from stentor.broker import load_config
from stentor.broker.config import BrokerConfig, described_settings
from stentor.errors import InvalidArgument


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "stentor.toml"
    file.write_text('port = 1\nhost = "file"\nzone = "file"\n')
    environment = {"STENTOR_PORT": "2", "STENTOR_HOST": "environment", "STENTOR_UNRELATED": "x", "PORT": "9"}
    config = load_config({"port": 3, "host": None}, environment, file)
    assert (config.port, config.host, config.zone) == (3, "environment", "file")
    assert config.http_port == BrokerConfig().http_port


def test_the_environment_is_text_and_understood_as_what_it_means():
    config = load_config(
        {}, {"STENTOR_HTTP": "false", "STENTOR_RETENTION_AGE_S": "60", "STENTOR_RETENTION_BYTES": "none"}
    )
    assert config.http is False
    assert config.retention_age_s == 60
    assert config.retention_bytes is None


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"port": 70_000}, {}, "port is 70000, not a whole number from 0 to 65,535"),
        ({"port": "many"}, {}, "port is 'many', not a whole number from 0 to 65,535"),
        ({"default_partitions": 0}, {}, "default_partitions is 0, not a whole number from 1 to"),
        ({"flush": "sometimes"}, {}, "flush is 'sometimes', not "),
        ({"colour": "red"}, {}, "there is none called colour"),
        ({"hots": "red"}, {}, "there is none called hots; host is the nearest"),
        ({"auto_create": "perhaps"}, {}, "auto_create is 'perhaps', not true or false"),
        ({}, {"STENTOR_SEGMENT_BYTES": "5"}, "segment_bytes is '5', not a whole number from "),
        ({}, {"STENTOR_LOG_LEVEL": "loud"}, "log_level is 'loud', not debug or info or warning or error"),
        ({}, {"STENTOR_RETENTION_AGE_S": "0"}, "retention_age_s is '0', not a whole number from 1 or none"),
        ({"connections_max": 0}, {}, "connections_max is 0, not a whole number from 1"),
        ({"metrics_interval_s": -1}, {}, "metrics_interval_s is -1, not a number from 0 to 3,600"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_in_words(flags, environment, words):
    with pytest.raises(InvalidArgument, match="A setting of the broker is wrong: ") as caught:
        load_config(flags, environment)
    assert words in caught.value.message
    assert "docs/configuration.md" in caught.value.hint


def test_a_file_that_cannot_be_used_is_refused_in_words(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load_config({}, {}, tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 5")
    with pytest.raises(InvalidArgument, match="not valid TOML"):
        load_config({}, {}, broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="not valid TOML"):
        load_config({}, {}, broken)
    broken.write_text("colour = 'red'")
    with pytest.raises(InvalidArgument, match="colour"):
        load_config({}, {}, broken)


def test_every_setting_has_a_meaning():
    for name, _, meaning in described_settings():
        assert meaning.endswith("."), name
