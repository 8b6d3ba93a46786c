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
    ("flags", "environment"),
    [
        ({"port": 70_000}, {}),
        ({"port": "many"}, {}),
        ({"default_partitions": 0}, {}),
        ({"flush": "sometimes"}, {}),
        ({"colour": "red"}, {}),
        ({}, {"STENTOR_SEGMENT_BYTES": "5"}),
        ({}, {"STENTOR_LOG_LEVEL": "loud"}),
        ({"connections_max": 0}, {}),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_in_words(flags, environment):
    with pytest.raises(InvalidArgument, match="setting") as caught:
        load_config(flags, environment)
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
