"""etcd with passwords, roles and TLS."""

import asyncio
import base64
import datetime as dt
import ipaddress
import logging

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stentor.coordination.etcd import TlsFiles, open_etcd
from stentor.errors import CoordinationError, CoordinationRefused, CoordinationUnavailable
from stentor.testing.etcd import LocalEtcd

PASSWORD = "correct horse battery staple"


class Opener:
    """Opens stores on one etcd."""

    def __init__(self, local):
        self.local = local
        self.stores = []

    def open(self, prefix="/stentor/a", **options):
        self.stores.append(open_etcd(self.local.url + prefix, **options))
        return self.stores[-1]


# --- passwords ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(local_etcd):
    """An etcd that asks for a password, with a user who may do anything below one prefix."""
    with LocalEtcd() as local:
        yield local


@pytest.fixture
def guard(guarded, administrate):
    def ask(path, **request):
        token = administrate(endpoint, "/v3/auth/authenticate", name="root", password="r")["token"] if closed else ""
        return administrate(endpoint, path, token, **request)

    endpoint, closed = guarded.endpoints[0], False
    ask("/v3/auth/user/add", name="root", password="r")
    ask("/v3/auth/role/add", name="root")
    ask("/v3/auth/user/grant", user="root", role="root")
    ask("/v3/auth/user/add", name="stentor", password=PASSWORD)
    ask("/v3/auth/role/add", name="brokers")
    prefix = [base64.b64encode(end).decode() for end in (b"/stentor/a/", b"/stentor/a0")]
    ask("/v3/auth/role/grant", name="brokers", perm={"permType": "READWRITE", "key": prefix[0], "range_end": prefix[1]})
    ask("/v3/auth/user/grant", user="stentor", role="brokers")
    ask("/v3/auth/enable")
    closed = True
    yield ask
    ask("/v3/auth/disable")
    closed = False
    for user in ("root", "stentor"):
        ask("/v3/auth/user/delete", name=user)
    for role in ("root", "brokers"):
        ask("/v3/auth/role/delete", role=role)


def test_a_user_does_everything_below_the_prefix_of_its_role(guarded, guard, tell, follow):
    opener = Opener(guarded)

    async def story():
        store = opener.open(user="stentor", password=PASSWORD)
        base = await store.range("")
        follower = follow(store.watch("", base.revision))
        lease = await store.lease(60)
        await store.keep_alive(lease)
        await store.swap(expect={"a": 0}, put={"a": b"1"}, lease=lease)
        assert not (await store.swap(expect={"a": 0}, put={})).succeeded
        await follower.knows({"a": b"1"})
        await store.revoke(lease)
        await follower.knows({})
        await follower.stop()

    tell(opener, story())


def test_a_token_that_is_not_accepted_any_more_is_replaced(guarded, guard, tell, follow):
    opener = Opener(guarded)

    async def story():
        store = opener.open(user="stentor", password=PASSWORD)
        base = await store.range("")
        for token in ("long.expired", None):
            store._gateway._token = token
            assert (await store.swap(expect={}, put={"a": b"1"})).succeeded
        store._gateway._token = "long.expired"
        follower = follow(store.watch("", base.revision))
        await follower.knows({"a": b"1"})
        # A role that changes makes all tokens of before too old for changes.
        await asyncio.to_thread(guard, "/v3/auth/role/add", name="another")
        try:
            assert (await store.swap(expect={}, put={"a": b"2"})).succeeded
            await follower.knows({"a": b"2"})
        finally:
            await asyncio.to_thread(guard, "/v3/auth/role/delete", role="another")
        await follower.stop()

    tell(opener, story())


def test_who_may_not_is_refused_and_no_password_is_shown(guarded, guard, tell, caplog):
    opener = Opener(guarded)
    caplog.set_level(logging.DEBUG)

    async def story():
        wrong = "wrong battery"
        stores = [
            opener.open(user="stentor", password=wrong),
            opener.open(user="nobody", password=PASSWORD),
            opener.open(),
            opener.open("/stentor/b", user="stentor", password=PASSWORD),
        ]
        for store in stores:
            calls = (store.get("a"), store.range(""), store.swap(expect={}, put={"a": b""}))
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, CoordinationRefused)
                assert not error.retriable
                assert wrong not in str(error)
                assert PASSWORD not in str(error)
        assert wrong not in caplog.text
        assert PASSWORD not in caplog.text

    tell(opener, story())


def test_a_watch_that_may_not_watch_waits_until_it_may(guarded, guard, tell, follow, eventually):
    opener = Opener(guarded)

    async def story():
        root = opener.open("/stentor/c", user="root", password="r")
        base = await root.range("")
        store = opener.open("/stentor/c", user="stentor", password=PASSWORD)
        follower = follow(store.watch("", base.revision))
        await eventually(lambda: store.statistics().reconnects > 1)
        await root.swap(expect={}, put={"a": b"1"})
        begin, end = (base64.b64encode(key).decode() for key in (b"/stentor/c/", b"/stentor/c0"))
        permission = {"permType": "READ", "key": begin, "range_end": end}
        await asyncio.to_thread(guard, "/v3/auth/role/grant", name="brokers", perm=permission)
        await follower.knows({"a": b"1"})
        await follower.stop()

    tell(opener, story())


def test_a_password_for_an_etcd_that_asks_for_none_does_no_harm(etcd_stores, tell):
    async def story():
        store = etcd_stores.open(user="stentor", password=PASSWORD)
        assert (await store.swap(expect={}, put={"a": b"1"})).succeeded

    tell(etcd_stores, story())


# --- TLS ----------------------------------------------------------------------------------------


def write_certificates(directory, name):
    """A new authority and one certificate for 127.0.0.1 that it signed."""
    now = dt.datetime.now(dt.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} {role}")]) for role in ("authority", "member")]

    def signed(owner, *extensions):
        certificate = x509.CertificateBuilder(
            issuer_name=names[0],
            subject_name=names[owner],
            public_key=keys[owner].public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - dt.timedelta(hours=1),
            not_valid_after=now + dt.timedelta(days=1),
        )
        for extension, critical in extensions:
            certificate = certificate.add_extension(extension, critical=critical)
        return certificate.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    files = {
        "ca_file": signed(
            0,
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (x509.SubjectKeyIdentifier.from_public_key(keys[0].public_key()), False),
        ),
        "cert_file": signed(
            1,
            (x509.SubjectAlternativeName([address]), False),
            (x509.ExtendedKeyUsage(usages), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), False),
        ),
        "key_file": keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for role, content in files.items():
        (directory / f"{name}-{role}.pem").write_bytes(content)
    return TlsFiles(**{role: str(directory / f"{name}-{role}.pem") for role in files})


def test_tls_lets_in_who_shows_a_certificate_and_nobody_else(local_etcd, tell, follow, tmp_path):
    ours, theirs = write_certificates(tmp_path, "ours"), write_certificates(tmp_path, "theirs")
    with LocalEtcd(tls=ours) as local:
        opener = Opener(local)

        async def story():
            store = opener.open(tls=ours)
            base = await store.swap(expect={"a": 0}, put={"a": b"1"})
            assert base.succeeded
            follower = follow(store.watch("", base.revision))
            await store.swap(expect={}, put={"a": b"2"})
            await follower.knows({"a": b"2"})
            await follower.stop()
            distrusted = opener.open(tls=theirs, timeout_s=0.3)
            with pytest.raises(CoordinationUnavailable, match="certificate"):
                await distrusted.swap(expect={}, put={"a": b"3"})
            for options in (
                {},  # plain text
                {"tls": TlsFiles(ca_file=ours.ca_file)},  # no certificate
                {"tls": TlsFiles(ours.ca_file, theirs.cert_file, theirs.key_file)},  # of another authority
            ):
                stranger = opener.open(timeout_s=0.3, **options)
                with pytest.raises(CoordinationUnavailable):
                    await stranger.get("a")
                with pytest.raises(CoordinationError):
                    await stranger.swap(expect={}, put={"a": b"3"})
            assert (await store.get("a")).value == b"2"

        tell(opener, story())
