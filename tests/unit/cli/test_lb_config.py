import pytest

from stentor.cli.app import run


def test_the_configuration_goes_to_standard_output_or_to_a_file(capsys, tmp_path):
    arguments = ["lb-config", "haproxy", "--brokers", "a,b:1/2", "--port", "7500"]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    assert "server broker-2 b:1 port 2" in printed
    file = tmp_path / "haproxy.cfg"
    assert run([*arguments, "--out", str(file)]) == 0
    out, err = capsys.readouterr()
    assert (out, file.read_text()) == ("", printed)
    assert f"haproxy -c -f {file}" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["apache", "--brokers", "a"], "There is no configuration for 'apache'. Use haproxy or nginx."),
        (["nginx", "--brokers", "a b"], "'a b' is not a broker's address."),
        (["nginx"], "--brokers"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(arguments, sentence, capsys):
    assert run(["lb-config", *arguments]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_exit_code_1(capsys, tmp_path):
    assert run(["lb-config", "nginx", "--brokers", "a", "--out", str(tmp_path / "no" / "file")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
