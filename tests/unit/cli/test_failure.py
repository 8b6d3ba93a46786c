import pytest

import stentor
from stentor.cli import app
from stentor.cli.failure import describe


@pytest.mark.parametrize(
    ("error", "sentence", "code"),
    [
        (stentor.TopicNotFound("There is no topic a.", hint="Create it."), "There is no topic a. Create it.", 1),
        (stentor.InvalidArgument("That is wrong.", hint="Do this."), "That is wrong. Do this.", 2),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file or directory.", 1),
        (OSError("strange"), "strange.", 1),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(error, sentence, code):
    assert describe(error) == (sentence, code)


def test_a_bug_says_that_it_is_one_and_how_to_report_it():
    sentence, code = describe(KeyError("x"))
    assert code == 1
    assert "bug" in sentence
    assert "STENTOR_DEBUG=1" in sentence


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["subscibe", "a"], "There is no command 'subscibe'. Did you mean 'subscribe'? Try 'stentor --help'."),
        (["frobnicate"], "There is no command 'frobnicate'. Try 'stentor --help'."),
        (["read"], "Missing argument 'TOPIC'. Try 'stentor read --help'."),
        (["read", "a", "--frob"], "No such option: --frob. Try 'stentor read --help'."),
        (["topic", "frobnicate"], "No such command 'frobnicate'. Try 'stentor topic --help'."),
    ],
)
def test_a_wrong_command_line_is_one_sentence_with_the_help_to_read(arguments, expected, capsys):
    assert app.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"stentor: {expected}\n"


def test_a_number_that_is_none_names_the_option(capsys):
    assert app.run(["read", "a", "--count", "many"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("stentor: Invalid value for '--count'")
    assert err.count("\n") == 1


def test_an_error_of_several_lines_becomes_one(monkeypatch, capsys):
    def fail(*_, **__):
        raise stentor.StentorError("It broke\nin two.", hint="Mend it.")

    monkeypatch.setattr("stentor.cli.options.connect", fail)
    assert app.run(["describe"]) == 1
    assert capsys.readouterr().err == "stentor: It broke in two. Mend it.\n"


def test_an_unexpected_error_prints_no_traceback(monkeypatch, capsys):
    def fail(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.delenv("STENTOR_DEBUG", raising=False)
    monkeypatch.setattr("stentor.cli.options.connect", fail)
    assert app.run(["describe"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_the_debug_variable_adds_the_traceback(monkeypatch, capsys):
    def fail(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setenv("STENTOR_DEBUG", "1")
    monkeypatch.setattr("stentor.cli.options.connect", fail)
    assert app.run(["describe"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("stentor: A bug in Stentor: ZeroDivisionError")


def test_ctrl_c_is_130(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("stentor.cli.options.connect", interrupt)
    assert app.run(["describe"]) == 130


def test_no_broker_says_how_to_start_one(monkeypatch, capsys):
    monkeypatch.setenv("STENTOR_URL", "127.0.0.1:1")
    assert app.run(["topic", "list", "--timeout", "5"]) == 1
    err = capsys.readouterr().err
    assert "127.0.0.1:1" in err
    assert "stentor serve" in err
    assert err.count("\n") == 1


def test_a_bad_url_is_a_usage_error(capsys):
    assert app.run(["topic", "list", "--url", "http://localhost"]) == 2
    assert "stentor://host:port" in capsys.readouterr().err
