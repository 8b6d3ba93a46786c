"""A chat in asyncio: what you type goes to everyone in the room, and you see what they type.

    python examples/async_chat.py NAME [ROOM]

End it with Ctrl-D.
"""

import asyncio
import sys

import stentor


async def listen(subscription: stentor.AsyncSubscription, name: bytes, joined: int) -> None:
    """Print what comes, until we see ourselves leave."""
    async for message in subscription:
        print(f"{(message.key or b'somebody').decode()}: {(message.value or b'').decode()}", flush=True)
        if message.key == name and message.value == b"has left" and message.offset > joined:
            return


async def talk(client: stentor.AsyncClient, topic: str, name: str) -> None:
    """Publish each line of standard input."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        await client.publish(topic, line.rstrip("\n"), key=name)
    await client.publish(topic, "has left", key=name)


async def main(name: str, room: str) -> None:
    topic = f"chat.{room}"
    async with stentor.connect_async(name=f"chat {name}") as client:
        joined = await client.publish(topic, "has joined", key=name)
        async with client.subscribe(topic, start=stentor.Last(10)) as subscription:
            await asyncio.gather(listen(subscription, name.encode(), joined.offset), talk(client, topic, name))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/async_chat.py NAME [ROOM]")
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "lobby"))
