"""Services that come, go and crash, and a caller that always finds one that is there.

Each service is a process that registers its name and address. The caller asks for "shop" and gets one of them in turn.
A service that stops takes its name with it. One that is killed is forgotten when its grace is over.
"""

import subprocess
import sys
from collections import Counter

import stentor

GRACE_S = 1.0
SERVICE = f"""
import sys, stentor
with stentor.connect() as client:
    client.names.register(sys.argv[1], sys.argv[2], grace={GRACE_S})
    sys.stdin.read()  # a service would serve here, until it is told to stop
"""


def start(number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVICE, f"shop/{number}", f"10.0.0.{number}:80"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)  # noqa: S603 - the program above


with stentor.connect() as client, client.names.watch("shop") as changes:
    services = {number: start(number) for number in (1, 2, 3)}
    for _ in services:
        changes.get(timeout=30)
    calls = Counter(client.names.resolve("shop") for _ in range(9))
    print("calls:", dict(sorted(calls.items())))

    services[1].communicate()  # ends its input, and so the service
    print("stopped:", changes.get(timeout=30).name)

    services[2].kill()
    lost = changes.get(timeout=30)
    print("crashed:", lost.name, "expired" if lost.expired else "")
    print("left:", client.names.resolve_all("shop"))

    for service in services.values():
        service.communicate()
    print("gone:", changes.get(timeout=30).name)
