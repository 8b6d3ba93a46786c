"""Feature flags: a service reads them from its own copy of a table, and an operator flips one while it runs.

The service asks for flags in every request. That is a look into a dict: no broker is asked, and none needs to be up.
"""

import threading
import time
from itertools import count

import stentor

FLAGS = "examples.flags"
NEW_PAGE = "checkout/new-page"


def handle(flags: stentor.Table) -> str:
    """One request, as a web framework would hand it over."""
    time.sleep(0.001)  # what the request costs otherwise
    return "new page" if flags.get(NEW_PAGE) == b"on" else "old page"


def flip(flags: stentor.Table) -> None:
    """What the operator does, perhaps with `stentor table put`. Nobody else may have flipped it meanwhile."""
    entry = flags.entry(NEW_PAGE)
    assert entry is not None
    changed = flags.put(NEW_PAGE, "on", if_version=entry.version)
    print(f"operator: {NEW_PAGE} is on, at version {changed.version}")


with stentor.connect(name="operator") as operator, stentor.connect(name="service") as service:
    operator.create_topic(FLAGS, kind="table", exist_ok=True)
    with operator.table(FLAGS) as switches, service.table(FLAGS) as flags:
        switches.put(NEW_PAGE, "off")
        flags.wait(switches.sequence)  # the service sees at least what the operator saw

        working = threading.Thread(target=flip, args=(switches,))
        for number in count(1):
            page = handle(flags)
            if number == 1:
                print(f"service: the first request gets the {page}")
            if number == 100:
                working.start()
            if page == "new page":
                print(f"service: now a request gets the {page}")
                break
        working.join()
