"""A leader among workers: whoever holds an ephemeral key leads, and stops before the key can be another's.

The fence of the key grows with each leader. It goes along with everything that the leader writes, so that whoever
takes it can refuse what an older leader sends late. A leader that dies loses its key when its grace is over.
"""

import threading

import stentor

TABLE = "examples.leaders"
GRACE_S = 5.0
SURE_S = 1.0  # how long a piece of work may take

accepted: list[tuple[int, str]] = []  # what the leaders wrote, with the fence of each


def write(fence: int, text: str) -> None:
    """Somewhere else, for example into a database: it takes nothing from who led before."""
    newest = max((seen for seen, _ in accepted), default=-1)
    if fence >= newest:
        accepted.append((fence, text))


def lead(table: stentor.Table, name: str, fence: int) -> None:
    """Three pieces of work, each only while nobody else can lead."""
    for number in range(3):
        if table.confirm("leader") < SURE_S:
            print(f"{name}: I may not lead any more")
            return
        write(fence, f"{name} did piece {number}")


def work(name: str) -> None:
    with stentor.connect(name=name) as client, client.table(TABLE) as table:
        while True:
            with table.watch() as changes:
                try:
                    leader = table.put("leader", name, if_absent=True, ephemeral=True, grace=GRACE_S)
                except stentor.ConditionFailed:
                    table.sync()
                    while "leader" in table:  # until it resigns, or its key expires
                        changes.get(timeout=60)
                    continue
            lead(table, name, leader.fence)
            return  # closing the table deletes the key: another one leads at once


with stentor.connect() as client:
    client.create_topic(TABLE, kind="table", exist_ok=True)
workers = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
fences = [fence for fence, _ in accepted]
print(f"{len(accepted)} pieces of work by {len(set(fences))} leaders, one after the other: {fences == sorted(fences)}")
