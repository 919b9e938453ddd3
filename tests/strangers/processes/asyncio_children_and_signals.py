# asyncio's children, signal handlers and debug tasks work in a program.
import asyncio
import os
import signal
import sys


async def main():
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, came.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(came.wait(), 10)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('child')", stdout=asyncio.subprocess.PIPE)
    print((await child.communicate())[0], child.returncode)
    async with asyncio.TaskGroup() as group:
        done = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
    print([each.result() for each in done])


asyncio.run(main())
