import pytest

from stentor.errors import InvalidArgument
from stentor.transport.address import Address, split


@pytest.mark.parametrize(
    ("text", "host", "port", "printed"),
    [
        ("localhost:7440", "localhost", 7440, "localhost:7440"),
        (" 10.0.0.1:1 ", "10.0.0.1", 1, "10.0.0.1:1"),
        ("[::1]:7440", "::1", 7440, "[::1]:7440"),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65_535, "[fe80::1%eth0]:65535"),
        ("[localhost]:80", "localhost", 80, "localhost:80"),
        ("bücher.example:7440", "bücher.example", 7440, "bücher.example:7440"),
    ],
)
def test_an_address_is_read_and_printed(text, host, port, printed):
    address = Address.parse(text)
    assert address == Address(host, port)
    assert str(address) == printed
    assert Address.parse(printed) == address


@pytest.mark.parametrize(("text", "port"), [("::1:7440", 7440), ("2001:db8::7:7441", 7441), (":::1", 1)])
def test_an_ipv6_address_without_brackets_ends_before_its_last_number(text, port):
    """Brokers that listen on one advertise it so."""
    address = Address.parse(text)
    assert address == Address(text.rpartition(":")[0], port)
    assert str(address) == f"[{address.host}]:{port}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 9)),
        ("localhost:1", Address("localhost", 1)),
        ("[::1]", Address("::1", 9)),
        ("[::1]:1", Address("::1", 1)),
        ("::1", Address("::1", 9)),
    ],
)
def test_a_port_that_is_not_named_is_the_default(text, address):
    assert Address.parse(text, 9) == address


@pytest.mark.parametrize("text", ["localhost", "[::1]", "::1"])
def test_without_a_default_the_port_must_be_named(text):
    with pytest.raises(InvalidArgument, match="is not an address"):
        Address.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", ":1", "[]", "[]:1", "a:", "[::1]:", "a:b", "a:-1", "a:0", "a:65536", "a:²", "a:1:2", "[::1", "::1]",
        "[::1]7440", "[::1]x:1", "[a:b]:1", "a b:1", "a\tb:1", "a\0b:1", "a..b:1", "a" * 70 + ":1", "\udcff:1",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_words(text):
    with pytest.raises(InvalidArgument, match="is not an address") as refused:
        Address.parse(text, 9)
    assert "[::1]:7440" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "parts"),
    [("h", ("h", "")), ("h:1", ("h", "1")), ("[::1]:1", ("::1", "1")), ("::1", ("::1", "")), ("[::1", ("[::1", ""))],
)
def test_any_text_is_split_into_host_and_port_without_judging_it(text, parts):
    assert split(text) == parts
