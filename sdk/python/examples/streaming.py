"""Output while it is produced, from an async client."""

import asyncio

from pandastack import AsyncPandaStack


async def main() -> None:
    async with AsyncPandaStack() as client, await client.sandboxes.create() as sandbox:
        stream = await sandbox.exec_stream("for i in 1 2 3; do echo line $i; done", timeout_seconds=30)
        async for chunk in stream:
            print(chunk.stream, chunk.text, end="")
        print("exit code", stream.exit_code)


asyncio.run(main())
