# asyncio closes what it began, then the error comes to the hook.
import asyncio
import sys


async def serve():
    try:
        await asyncio.sleep(1000)
    finally:
        print("served")


async def main():
    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    raise ValueError(f"bad batch, served: {task.done()}")


sys.excepthook = lambda kind, error, trace: print("hook", error)
asyncio.run(main())
