"""The store on etcd when the way there, or etcd itself, misbehaves."""

import asyncio
import base64
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from stentor import limits
from stentor.coordination.etcd import EtcdSettings, EtcdStore, TlsFiles, open_etcd
from stentor.coordination.etcd.config import parse_url
from stentor.errors import CoordinationUnavailable, InvalidArgument, StentorError, UnknownSwap
from stentor.testing.etcd import LocalEtcd

NOTICED_S = 5.0  # what "a few seconds" are, with some room for a busy machine


def nobody(count=1):
    """Endpoints at which nothing listens."""
    with ExitStack() as sockets:
        servers = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in servers)


# --- answers that do not come -------------------------------------------------------------------


def test_a_swap_whose_answer_is_lost_is_unknown_and_can_be_read_back(etcd_stores, tell, proxy_to):
    async def story():
        async with proxy_to(etcd_stores.endpoint) as proxy:
            store = etcd_stores.open(proxy.endpoint, timeout_s=0.5)
            base = await store.swap(expect={}, put={"chain": b"old"})
            proxy.swallowing = True
            with pytest.raises(UnknownSwap) as unknown:
                await store.swap(expect={"chain": base.revision}, put={"chain": b"proposal 7"})
            assert not unknown.value.retriable
            assert "read" in unknown.value.hint.lower()
            assert proxy.swallowed
            assert not store.statistics().available
            proxy.swallowing = False
            found = await store.get("chain")
            assert found.value == b"proposal 7", "it was carried out all the same"
            assert found.revision == base.revision + 1, "and only once"
            assert store.statistics().available

    tell(etcd_stores, story())


def test_a_swap_whose_connection_breaks_is_unknown(etcd_stores, tell, proxy_to, eventually):
    async def story():
        async with proxy_to(etcd_stores.endpoint) as proxy:
            store = etcd_stores.open(proxy.endpoint)
            await store.range("")
            proxy.swallowing = True
            swapping = asyncio.ensure_future(store.swap(expect={}, put={"a": b"1"}))
            await eventually(lambda: proxy.swallowed)
            proxy.cut()
            with pytest.raises(UnknownSwap):
                await swapping

    tell(etcd_stores, story())


def test_a_swap_that_was_never_sent_is_unavailable_and_reaches_the_next_endpoint(etcd_stores, tell):
    async def story():
        alone = etcd_stores.open(nobody(), timeout_s=0.3)
        with pytest.raises(CoordinationUnavailable) as refused:
            await alone.swap(expect={}, put={"a": b"1"})
        assert refused.value.retriable
        with pytest.raises(CoordinationUnavailable):
            await alone.range("")
        assert alone.statistics().failures > 2, "it tried again until the deadline"
        store = etcd_stores.open(f"{nobody(2)},{etcd_stores.endpoint}")
        assert (await store.swap(expect={"a": 0}, put={"a": b"1"})).succeeded
        assert store.statistics().endpoint == etcd_stores.endpoint
        assert store.statistics().requests == 3
        await store.get("a")
        assert store.statistics().requests == 4, "the endpoint that answered is asked first"

    tell(etcd_stores, story())


def test_a_read_does_not_wait_for_an_endpoint_that_keeps_silent(etcd_stores, tell, proxy_to, monkeypatch):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_ATTEMPT_S", 0.2)
        async with proxy_to(etcd_stores.endpoint) as proxy:
            proxy.swallowing = True
            store = etcd_stores.open(f"{proxy.endpoint},{etcd_stores.endpoint}")
            assert list(await store.range("")) == []
            assert store.statistics().endpoint == etcd_stores.endpoint

    tell(etcd_stores, story())


def test_closing_does_not_wait_for_an_answer(etcd_stores, tell, proxy_to, eventually):
    async def story():
        async with proxy_to(etcd_stores.endpoint) as proxy:
            proxy.swallowing = True
            store = etcd_stores.open(proxy.endpoint, timeout_s=30)
            calls = [
                asyncio.ensure_future(store.get("a")),
                asyncio.ensure_future(store.swap(expect={}, put={"a": b""})),
            ]
            await eventually(lambda: proxy.swallowed >= 2)
            await store.close()
            closed, unknown = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
            assert closed.code == "closed"
            assert isinstance(unknown, UnknownSwap)

    tell(etcd_stores, story())


# --- watches that break -------------------------------------------------------------------------


def test_a_watch_goes_on_after_its_connection_was_cut(etcd_stores, tell, proxy_to, follow, eventually):
    async def story():
        direct = etcd_stores.open()
        base = await direct.range("")
        async with proxy_to(etcd_stores.endpoint) as proxy:
            store = etcd_stores.open(proxy.endpoint)
            follower = follow(store.watch("", base.revision))
            known, revisions = {}, []
            for index in range(3):
                for name in ("now", "cut"):
                    key, value = f"{name}/{index}", b"%d" % index
                    revisions.append((await direct.swap(expect={}, put={key: value})).revision)
                    known[key] = value
                    if name == "now":
                        await follower.knows(known)
                        proxy.cut()
                await follower.knows(known)
            assert follower.revisions == revisions, "each once, in order"
            assert store.statistics().reconnects >= 3
            assert not follower.resyncs
            await follower.stop()

    tell(etcd_stores, story())


def test_a_watch_that_was_cut_off_while_the_history_was_compacted_is_given_everything(
    etcd_stores, tell, proxy_to, follow, eventually
):
    async def story():
        direct = etcd_stores.open()
        await direct.swap(expect={}, put={"old": b"", "kept": b""})
        base = await direct.range("")
        async with proxy_to(etcd_stores.endpoint) as proxy:
            store = etcd_stores.open(proxy.endpoint)
            follower = follow(store.watch("", base.revision))
            await direct.swap(expect={}, put={"seen": b""})
            await follower.knows({"seen": b""})
            proxy.swallowing = True
            proxy.cut()
            await direct.swap(expect={}, put={"new": b""}, delete=("old",))
            now = await direct.swap(expect={}, put={"seen": b"again"})
            etcd_stores.forget_history(now.revision)
            proxy.swallowing = False
            proxy.cut()
            await follower.knows({"kept": b"", "seen": b"again", "new": b""})
            assert len(follower.resyncs) == 1
            await follower.stop()

    tell(etcd_stores, story())


def test_a_stream_that_is_stuck_although_etcd_answers_is_replaced(
    etcd_stores, tell, proxy_to, follow, eventually, monkeypatch
):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_POLL_S", 0.1)
        monkeypatch.setattr(limits, "COORDINATION_STREAM_S", 0.5)
        direct = etcd_stores.open()
        base = await direct.range("")
        async with proxy_to(etcd_stores.endpoint) as proxy:
            store = etcd_stores.open(proxy.endpoint)
            follower = follow(store.watch("", base.revision))
            await direct.swap(expect={}, put={"a": b"1"})
            await follower.knows({"a": b"1"})
            proxy.swallowing = True
            await direct.swap(expect={}, put={}, delete=("a",))
            await eventually(lambda: proxy.swallowed)
            proxy.swallowing = False  # from now on everything passes, but that change is lost on the stream
            await follower.knows({})
            assert not follower.resyncs
            await follower.stop()

    tell(etcd_stores, story())


def test_a_paused_etcd_is_noticed_within_seconds_and_watched_again_when_it_goes_on(
    etcd_stores, local_etcd, tell, follow, eventually
):
    async def story():
        store, patient = etcd_stores.open(timeout_s=0.3), etcd_stores.open()
        base = await patient.swap(expect={}, put={"a": b"1"})
        follower = follow(store.watch("", base.revision))
        await patient.swap(expect={}, put={"a": b"2"})
        await follower.knows({"a": b"2"})
        local_etcd.pause()
        try:
            await eventually(lambda: not store.statistics().available, "noticing", NOTICED_S)
            with pytest.raises(CoordinationUnavailable):
                await store.get("a")
            with pytest.raises(UnknownSwap):
                await store.swap(expect={}, put={"b": b"1"})
        finally:
            local_etcd.resume()
        await patient.swap(expect={}, put={"a": b"3"})
        found = {entry.key: entry.value for entry in await patient.range("")}
        assert found in ({"a": b"3"}, {"a": b"3", "b": b"1"}), "the unknown one was made, or not"
        await follower.knows(found, NOTICED_S)
        assert store.statistics().available
        assert store.statistics().reconnects
        await follower.stop()

    tell(etcd_stores, story())


def test_a_watch_moves_away_from_an_endpoint_that_stands_still(etcd_stores, tell, proxy_to, follow, monkeypatch):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_POLL_S", 0.2)
        monkeypatch.setattr(limits, "COORDINATION_POLL_TIMEOUT_S", 0.4)
        direct = etcd_stores.open()
        base = await direct.range("")
        async with proxy_to(etcd_stores.endpoint) as proxy:
            store = etcd_stores.open(f"{proxy.endpoint},{etcd_stores.endpoint}")
            follower = follow(store.watch("", base.revision))
            await direct.swap(expect={}, put={"a": b"1"})
            await follower.knows({"a": b"1"})
            assert store.statistics().endpoint == proxy.endpoint
            proxy.swallowing = True
            await direct.swap(expect={}, put={"a": b"2"})
            await follower.knows({"a": b"2"}, NOTICED_S)
            assert store.statistics().endpoint == etcd_stores.endpoint
            await follower.stop()

    tell(etcd_stores, story())


# --- answers that make no sense -----------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
GARBAGE = {
    "nothing": b"",
    "noise": b"\x00\xff\x16\x03\x01 what?\r\n\r\n",
    "a page": OK + b"Content-Length: 22\r\n\r\n<html>Welcome!</html>\n",
    "another service": OK + b"Content-Length: 2\r\n\r\n{}",
    "a list": OK + b"Content-Length: 2\r\n\r\n[]",
    "wrong types": OK + b'Content-Length: 33\r\n\r\n{"header":{"revision":"many"}}   ',
    "no base64": OK
    + b'Content-Length: 51\r\n\r\n{"header":{"revision":"5"},"kvs":[{"key":"\xc3\xa4\xc3\xb6\xc3\xbc"}]}  ',
    "cut short": OK + b'Content-Length: 99\r\n\r\n{"header":{"revision":"5"}',
    "deep": OK + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000,
    "a redirect": b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "a gateway's error": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 11\r\n\r\nBad Gateway",
    "no gateway": b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nNot Found\n",
    "an error without a code": b'HTTP/1.1 500 Oh\r\nContent-Length: 14\r\n\r\n{"error":"no"}',
    "compressed": OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
    "endless": OK + b"\r\n" + b"x" * 100_000,
}


def answering(answer, asked=None):
    """Serves this whatever it is asked, and notes the paths."""

    async def serve(reader, writer):
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            if asked is not None:
                asked.append(request.split()[1])
            writer.write(answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # whoever asked waits no longer
        finally:
            writer.close()

    return serve


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_in_typed_errors_and_never_looks_like_an_answer(
    etcd_stores, tell, follow, eventually, garbage, monkeypatch
):
    monkeypatch.setattr(limits, "COORDINATION_ANSWER_BYTES_MAX", 50_000)

    async def story():
        server = await asyncio.start_server(answering(garbage), "127.0.0.1", 0)
        endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        store = etcd_stores.open(endpoint, timeout_s=0.3)
        calls = (store.get("a"), store.range(""), store.lease(5), store.keep_alive(5), store.revoke(5))
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, CoordinationUnavailable)
            assert error.object == endpoint
        with pytest.raises(UnknownSwap):
            await store.swap(expect={}, put={"a": b""})
        both = etcd_stores.open(f"{endpoint},{etcd_stores.endpoint}")
        base = await etcd_stores.open().range("")
        follower = follow(both.watch("", base.revision))
        await both.range("")  # which finds the endpoint that answers
        await both.swap(expect={}, put={"a": b"1"})
        await follower.knows({"a": b"1"})
        await follower.stop()
        server.close()

    tell(etcd_stores, story())


@pytest.mark.parametrize(
    "line",
    [
        b"what?",
        b"{}",
        b'{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"Service Unavailable"}}',
        b'{"result":{"canceled":true,"cancel_reason":"because"}}',
        b'{"result":{"events":[{"kv":{}}]}}',
        b"x" * 100_000,
    ],
)
def test_a_watch_survives_what_its_stream_says(etcd_stores, tell, follow, eventually, line, monkeypatch):
    monkeypatch.setattr(limits, "COORDINATION_ANSWER_BYTES_MAX", 50_000)
    asked = []

    async def story():
        server = await asyncio.start_server(answering(OK + b"\r\n" + line + b"\n", asked), "127.0.0.1", 0)
        endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        base = await etcd_stores.open().swap(expect={}, put={"a": b"1"})
        store = etcd_stores.open(f"{endpoint},{etcd_stores.endpoint}")
        follower = follow(store.watch("", base.revision - 1))
        await follower.knows({"a": b"1"})
        assert b"/v3/watch" in asked
        await follower.stop()
        server.close()

    tell(etcd_stores, story())


# --- many keys, foreign keys --------------------------------------------------------------------


def test_a_range_of_many_pages_is_of_one_revision(etcd_stores, tell, monkeypatch):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_PAGE_ENTRIES", 3)
        store, other = etcd_stores.open(), etcd_stores.open()
        keys = [f"k{index:02}" for index in range(20)]
        await store.swap(expect={}, put=dict.fromkeys(keys, b"0"))

        async def write():
            for index in range(1, 60):
                await other.swap(expect={}, put=dict.fromkeys(keys, b"%d" % index))

        writing = asyncio.ensure_future(write())
        while not writing.done():
            found = await store.range("")
            assert [entry.key for entry in found] == keys
            assert len({entry.value for entry in found}) == 1
            assert {entry.revision for entry in found} <= set(range(found.revision + 1))
        await writing

    tell(etcd_stores, story())


def test_a_range_whose_revision_is_compacted_between_pages_is_begun_again(etcd_stores, tell, monkeypatch):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_PAGE_ENTRIES", 2)
        store = etcd_stores.open()
        await store.swap(expect={}, put={f"k{index}": b"" for index in range(5)})
        call, compactions = store._gateway.call, []

        async def call_and_compact(path, request, *rest, **options):
            answer = await call(path, request, *rest, **options)
            if len(compactions) < keep_compacting:
                changed = await etcd_stores.open().swap(expect={}, put={"k0": b"%d" % len(compactions)})
                etcd_stores.forget_history(changed.revision)
                compactions.append(changed.revision)
            return answer

        monkeypatch.setattr(store._gateway, "call", call_and_compact)
        keep_compacting = 1
        assert len(await store.range("")) == 5
        keep_compacting = 99
        with pytest.raises(CoordinationUnavailable, match="compacted"):
            await store.range("")

    tell(etcd_stores, story())


def test_clusters_that_share_an_etcd_do_not_see_each_other(etcd_stores, tell, follow):
    async def story():
        mine = etcd_stores.open()
        theirs = open_etcd(f"etcd://{etcd_stores.endpoint}{etcd_stores.prefix}0")
        base = await mine.range("")
        follower = follow(mine.watch("", base.revision))
        await theirs.swap(expect={}, put={"a": b"theirs"})
        await mine.swap(expect={"a": 0}, put={"a": b"mine"})
        await follower.knows({"a": b"mine"})
        assert len(follower.events) == 1
        assert (await theirs.get("a")).value == b"theirs"
        await follower.stop()
        await theirs.close()

    tell(etcd_stores, story())


@pytest.fixture(scope="module")
def own_etcd(local_etcd):
    """An etcd that nobody else has written to."""
    with LocalEtcd() as local:
        yield local


@pytest.mark.parametrize("prefix", ["/stentor/prod", "/stentor/topics2", "/other"])
def test_a_cluster_below_the_prefix_of_another_shares_its_etcd(own_etcd, prefix):
    async def story():
        ours, theirs = open_etcd(own_etcd.url), open_etcd(own_etcd.url + prefix)
        kinds = ("topics/", "controller")
        await ours.swap(expect={}, put={"topics/a": b"", "topics/b": b"", "controller": b""})
        assert not await ours.is_shared(kinds)
        made = await theirs.swap(expect={}, put={"topics/a": b"", "controller": b""})
        assert made.succeeded
        assert await ours.is_shared(kinds)
        assert await theirs.is_shared(kinds)
        await theirs.swap(expect={}, put={}, delete=("topics/a", "controller"))
        assert not await ours.is_shared(kinds)
        await ours.close()
        await theirs.close()

    asyncio.run(story())


def test_a_foreign_key_that_is_no_text_does_not_stop_us(etcd_stores, tell, follow, administrate):
    async def story():
        store = etcd_stores.open()
        base = await store.swap(expect={}, put={"a": b"1"})
        key = base64.b64encode(f"{etcd_stores.prefix}/".encode() + b"\xff\xfe").decode()
        administrate(etcd_stores.endpoint, "/v3/kv/put", key=key, value="")
        follower = follow(store.watch("", base.revision - 1))
        found = {entry.key: entry.value for entry in await store.range("")}
        assert len(found) == 2
        await follower.knows(found)
        with pytest.raises(InvalidArgument):
            await store.get("\udcff")
        await follower.stop()

    tell(etcd_stores, story())


# --- settings -----------------------------------------------------------------------------------


def test_a_url_names_endpoints_and_a_prefix():
    assert parse_url("etcd://h1:2379,h2:4001/stentor/prod") == (("h1:2379", "h2:4001"), "/stentor/prod/")
    assert parse_url("etcd://h1") == (("h1:2379",), "/stentor/")
    assert parse_url("etcd://[::1]:7,10.0.0.1/") == (("[::1]:7", "10.0.0.1:2379"), "/stentor/")


@pytest.mark.parametrize(
    "url",
    [
        "", "etcd://", "etcd:///prefix", "http://h1:2379", "h1:2379", "etcd://h1:port", "etcd://h1:99999",
        "etcd://h1,,h2", "etcd://h 1", "etcd://h1/x?user=y", "etcd://h1#x",
    ],
)  # fmt: skip
def test_a_malformed_url_is_refused(url):
    with pytest.raises(InvalidArgument, match="etcd"):
        open_etcd(url)


def test_secrets_are_in_no_text():
    with pytest.raises(InvalidArgument) as refused:
        open_etcd("etcd://stentor:hunter2@h1:2379")
    assert "hunter2" not in str(refused.value)
    settings = EtcdSettings(("h1:2379",), user="stentor", password="hunter2")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr(EtcdStore(settings))


def test_a_tls_file_that_cannot_be_used_is_named(tmp_path):
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for tls in (
        TlsFiles(ca_file=str(tmp_path / "absent.pem")),
        TlsFiles(ca_file=str(broken)),
        TlsFiles(cert_file=str(broken)),
        TlsFiles(cert_file=str(tmp_path / "absent.pem"), key_file=str(broken)),
    ):
        with pytest.raises(InvalidArgument, match=str(tmp_path)):
            open_etcd("etcd://h1", tls=tls)


def test_errors_of_coordination_are_one_family():
    codes = {"coordination_unavailable", "coordination_refused", "unknown_swap", "lease_expired", "store_full"}
    family = {kind.code: kind for kind in StentorError.__subclasses__()}["coordination_error"]
    assert {kind.code for kind in family.__subclasses__()} == codes


def test_the_http_library_is_loaded_when_it_is_needed():
    code = "import sys, stentor.coordination.etcd; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
