# A scheduler preempts by SIGHUP, SIGCONT and SIGTERM: nothing is blocked, and its own handler requeues (submitit 1701).
import os
import signal

print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGCONT))  # HUP as nohup left it
told = []
for number in (signal.SIGHUP, signal.SIGCONT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: told.append(signal.Signals(number).name))
    os.kill(os.getpid(), number)
print(told)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGHUP)
    print("the child has the handlers, too", told[3:], flush=True)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
raise SystemExit(85)
