"""The end of a turn of the loop: batches, then words, then disks."""

import asyncio

from stentor.broker.write_coalescing import WriteCoalescing


async def ended(turn):
    """Let the loop come round often enough for everything that was put off."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_batches_leave_before_words_and_both_before_a_disk_is_waited_for():
    async def run():
        turn, done = WriteCoalescing(asyncio.get_running_loop()), []
        turn.wait(lambda: done.append("disk"))
        turn.send(lambda: done.append("words"))
        turn.gather(lambda: done.append("batches"))
        assert done == []
        await ended(turn)
        return done

    assert asyncio.run(run()) == ["batches", "words", "disk"]


def test_what_batches_bring_about_leaves_in_the_same_turn():
    async def run():
        turn, done = WriteCoalescing(asyncio.get_running_loop()), []
        turn.gather(lambda: turn.send(lambda: done.append("written")))
        await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["written"]


def test_what_the_disk_has_is_told_before_the_loop_looks_at_anything_else():
    async def run():
        loop = asyncio.get_running_loop()
        turn, done = WriteCoalescing(loop), []
        turn.wait(lambda: turn.send(lambda: done.append("told")))
        loop.call_soon(done.append, "others")
        await ended(turn)
        return done

    assert asyncio.run(run()) == ["told", "others"]


def test_a_feed_that_goes_on_gives_others_their_turn():
    async def run():
        loop = asyncio.get_running_loop()
        turn, done = WriteCoalescing(loop), []

        def feed():
            done.append("feed")
            if done.count("feed") < 3:
                turn.gather(feed)
                loop.call_soon(done.append, "others")

        turn.gather(feed)
        await ended(turn)
        return done

    assert asyncio.run(run()) == ["feed", "others", "feed", "others", "feed"]


def test_one_that_fails_takes_nobody_with_it():
    async def run():
        loop = asyncio.get_running_loop()
        seen, done = [], []
        loop.set_exception_handler(lambda _, context: seen.append(str(context["exception"])))
        turn = WriteCoalescing(loop)
        turn.gather(lambda: 1 / 0)
        turn.gather(lambda: done.append("batches"))
        turn.send(lambda: done.append("words"))
        await ended(turn)
        return seen, done

    seen, done = asyncio.run(run())
    assert seen == ["division by zero"]
    assert done == ["batches", "words"]


def test_the_same_work_is_done_once():
    class Link:
        def __init__(self):
            self.flushes = 0

        def flush(self):
            self.flushes += 1

    async def run():
        turn, link, other = WriteCoalescing(asyncio.get_running_loop()), Link(), Link()
        for _ in range(3):
            turn.send(link.flush)
            turn.send(other.flush)
        await ended(turn)
        return link.flushes, other.flushes

    assert asyncio.run(run()) == (1, 1)
