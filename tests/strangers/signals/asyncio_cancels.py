# asyncio takes Ctrl-C where Python's own handler is: it cancels the main task, which cleans up, and raises afterwards.
import asyncio
import os
import signal


async def stopped():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        print("cancelled")
        raise


try:
    asyncio.run(stopped())
except KeyboardInterrupt:
    print("stopped", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
