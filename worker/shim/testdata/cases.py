"""Cases that a rank must answer alike from a fresh interpreter and from a forkserver.

Only the cases that need torch import it, so that the fresh interpreters are quick.
"""

# ruff: noqa
import os
import sys

CASE = sys.argv[1]


def state():
    import __main__

    keep = ("__name__", "__doc__", "__package__", "__spec__", "__file__", "__cached__", "__builtins__")
    print({k: repr(getattr(__main__, k)) for k in keep})
    print(type(__main__.__loader__).__name__, __main__.__loader__.name, __main__ is sys.modules["__main__"])
    print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions)
    print(sys.executable, sys.prefix, sys.getrecursionlimit(), "sitecustomize" in sys.modules)
    print(os.getcwd(), sorted(e for e in os.environ.items() if e[0] not in own()))
    with open("/proc/self/cmdline") as f:
        print(f.read().split("\0"))
    with open("/proc/self/environ") as f:
        print(sorted(e for e in f.read().split("\0")[:-1] if e.partition("=")[0] not in own()))
    with open("/proc/self/comm") as f:
        print(f.read())
    for s in (sys.stdin, sys.stdout, sys.stderr):
        print(
            s.name,
            s.mode,
            s.encoding,
            s.errors,
            s.line_buffering,
            s.write_through,
            s.newlines,
            s.fileno(),
            s.isatty(),
        )
    print(sys.stdout is sys.__stdout__, os.get_inheritable(1))


def own():
    return ("TROUPE_GENERATION", "TROUPE_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE")

    signals()
    stack()


def signals():
    import signal

    for s in signal.valid_signals():
        print(s, signal.getsignal(s))
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.umask(0o22))
    with open("/proc/self/status") as f:
        print([line for line in f if line.startswith(("SigP", "SigB", "SigI", "SigC", "Shd", "Threads"))])
    import resource

    print(resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0), os.sched_getaffinity(0))

    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        if os.path.exists(f"/proc/self/fd/{fd}"):
            print(fd, os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2])
    print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.getppid() > 1)


def ending():
    global kept
    kept = Finalizer()
    threads()
    at_exit()


def threads():
    import threading
    import time

    def late():
        time.sleep(0.2)
        print("the thread ends", threading.current_thread().name)

    threading.Thread(target=late).start()
    print("main ends", threading.current_thread().name, threading.main_thread() is threading.current_thread())


def at_exit():
    import atexit

    atexit.register(print, "first registered")
    atexit.register(print, "second registered")
    sys.exit(3)


class Finalizer:
    def __del__(self):
        print("finalized")


def deep(n):
    if n:
        deep(n - 1)
    raise ValueError(f"deep\nand two lines: {CASE}")


def chained():
    try:
        deep(2)
    except ValueError as e:
        raise RuntimeError("chained") from e


def hook():
    def mine(kind, value, tb):
        print("hooked", kind.__name__, value, tb.tb_lineno, tb.tb_next.tb_next, file=sys.stderr)

    sys.excepthook = mine
    raise ValueError("hooked")


def broken_hook():
    sys.excepthook = lambda *_: 1 / 0
    raise ValueError("hooked")


def stack():
    import inspect
    import traceback
    import warnings

    traceback.print_stack()
    print([f.function for f in inspect.stack()], sys._getframe(1).f_back)
    warnings.warn("seen", stacklevel=3)


def multiprocess():
    import multiprocessing as mp

    for how in ("fork", "spawn", "forkserver"):
        c = mp.get_context(how)
        with c.Pool(2) as pool:
            print(how, pool.map(square, range(4)))
        q = c.SimpleQueue()
        p = c.Process(target=q_put, args=(q,))
        p.start()
        print(q.get(), p.name)
        p.join()


def square(x):
    return x * x


def q_put(q):
    q.put(("from a child", __name__.strip("_"), os.path.basename(__file__)))


def loader():
    import torch

    for how in ("fork", "spawn"):
        data = torch.utils.data.TensorDataset(torch.arange(8))
        for (x,) in torch.utils.data.DataLoader(
            data, batch_size=4, num_workers=1, multiprocessing_context=how
        ):
            print(how, x.tolist())


def numbers():
    import torch

    print(torch.get_num_threads(), torch.cuda.is_initialized())
    print(
        torch.cuda.is_available(),
        torch.cuda._is_in_bad_fork(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )
    torch.manual_seed(1)
    m = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    o = torch.optim.AdamW(m.parameters())
    for _ in range(5):
        o.zero_grad()
        torch.nn.functional.cross_entropy(m(torch.randn(16, 32)), torch.randint(4, (16,))).backward()
        o.step()
    print([p.double().sum().item() for p in m.parameters()])


def chance():
    import random

    import numpy
    import torch

    print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(), os.urandom(4))


def out():
    sys.stdout.write("no newline")
    sys.stderr.write("nor here")
    os.write(1, b" raw")
    print(sys.stdout.buffer.write(b" bytes"), end="")


def killed():
    print("about to die")
    os.kill(os.getpid(), 9)


def terminated():
    os.kill(os.getpid(), 15)


def interrupted():
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is born without
    os.kill(os.getpid(), signal.SIGINT)
    import time

    time.sleep(30)


CASES = {
    "exit-int": lambda: sys.exit(258),
    "exit-text": lambda: sys.exit("a reason"),
    "os-exit": lambda: os._exit(9),
    "broken-hook": broken_hook,
}
if __name__ == "__main__":
    (CASES.get(CASE) or globals()[CASE])()
