import re

import pytest

from stentor.errors import InvalidArgument
from stentor.http.balancer import Backend, parse_backends, render


def test_ports_that_are_not_named_are_the_usual_ones():
    assert parse_backends("a, b:1 ,c:2/3,d/4,[::1]:5/6,") == [
        Backend("a", 7440, 7441),
        Backend("b", 1, 7441),
        Backend("c", 2, 3),
        Backend("d", 7440, 4),
        Backend("[::1]", 5, 6),
    ]


@pytest.mark.parametrize(
    "text", ["a b", "a:", "a:0", "a:65536", "a:1/x", "a:1/2/3", "stentor://a", "::1", "a\nb", "a;b"]
)
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(InvalidArgument, match=r"is not a broker's address.*10\.0\.0\.1:7440/7441"):
        parse_backends(text)


@pytest.mark.parametrize(
    ("text", "what"), [("", "No broker is named"), (" , ", "No broker is named"), ("a,a:7440", "named twice")]
)
def test_no_broker_and_the_same_broker_twice_are_refused(text, what):
    with pytest.raises(InvalidArgument, match=what):
        parse_backends(text)


def test_haproxy_asks_each_broker_on_its_http_port_whether_it_is_ready():
    text = render("haproxy", parse_backends("a:1/2,b:3/4"), port=5)
    assert "bind *:5\n" in text
    assert "http-check send meth HEAD uri /health/ready" in text
    assert re.findall(r"^    server (.*)$", text, re.MULTILINE) == ["broker-1 a:1 port 2", "broker-2 b:3 port 4"]


def test_nginx_leaves_out_brokers_that_take_no_connection():
    text = render("nginx", parse_backends("a:1/2,b:3/4"), host="10.0.0.9", port=5)
    assert "listen 10.0.0.9:5;" in text
    assert re.findall(r"^        server (\S+) max_fails=1", text, re.MULTILINE) == ["a:1", "b:3"]


def test_another_balancer_is_not_known():
    with pytest.raises(InvalidArgument, match="Use haproxy or nginx"):
        render("apache", parse_backends("a"))
