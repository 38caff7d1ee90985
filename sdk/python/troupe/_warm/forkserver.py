"""A forkserver: preload, wait, fork ranks that go on as fresh interpreters.

It talks to its shim over the Unix socket in TROUPE_WARM: frames of a 4-byte big-endian
length and a JSON object. The shim speaks first, with what to import:

    {"op": "prepare", "preload": [...], "script": PATH or "", "safe": bool, "own": [...]}

``own`` names the variables that differ between ranks and attempts: a module that reads
one at import cannot be shared. The answers are ``importing`` before each module, and then
one of ``ready``, ``tainted`` (a module cannot be preloaded; the process ends, since it
cannot be unloaded either) and ``failed``. After that

    {"op": "fork", "ranks": N}     with N sockets as ancillary data

starts N ranks through a middle process that exits, so that they become the shim's own
children. Each rank then speaks the shim's protocol of a start over its socket: it reads
its spec, prepares itself, reports its pid and waits for one byte; a socket that closes
after it says that the rank's program runs.

Only the standard library is used, and nothing of it stays visible to a rank's script but
modules that torch imports anyway.
"""

from __future__ import annotations

import os
import sys

BASELINE = frozenset(sys.modules)  # before anything of ours is imported

import ast  # noqa: E402
import atexit  # noqa: E402
import contextlib  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import sysconfig  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

SOCKET = "TROUPE_WARM"
PROBE = "TROUPE_WARM_PROBE"
MAX_FRAME = 8 << 20
MAX_RANKS = 1024
MAX_LEARNED = 1000  # names of modules that a rank reports
IMPORTED = "_troupe_imported"  # of sys, until the first step of a rank
ADOPT_S = 60.0  # until the middle process has ended and the shim is the parent
FDS_A_MESSAGE = 64  # the kernel takes 253 descriptors in one message
PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_MM_MAP = 1, 35, 14
TORCH_SEED = 67280421310721

libc = ctypes.CDLL(None, use_errno=True)


class Gone(Exception):
    """The other side of a socket has closed it."""


def receive(s: socket.socket) -> dict[str, Any]:
    """Read one frame."""
    (size,) = struct.unpack(">I", _exactly(s, 4))
    if not 0 < size <= MAX_FRAME:
        raise Gone(f"a frame of {size} bytes")
    frame = json.loads(_exactly(s, size))
    if not isinstance(frame, dict):
        raise Gone("a frame that is no object")
    return frame


def _exactly(s: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        piece = s.recv(min(size - len(parts), 1 << 16))
        if not piece:
            raise Gone("end of file")
        parts += piece
    return bytes(parts)


def send(s: socket.socket, **fields: Any) -> None:
    """Write one frame."""
    body = json.dumps(fields).encode()
    s.sendall(struct.pack(">I", len(body)) + body)


# The way in.


def enter(here: str) -> bool:
    """Serve until the shim hangs up; returns only in a rank, and in a process not meant.

    Returns:
        Whether the interpreter's own sitecustomize was run.
    """
    path = os.environ.pop(SOCKET, "")
    probe = os.environ.pop(PROBE, "")
    _own_path(here)
    if probe:
        _probe()
    chained = _chain()
    if not path:  # a process that merely inherited the folder in PYTHONPATH
        return chained
    try:
        with Reads() as reads:
            control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            control.connect(path)
            order = receive(control)
            kept = prepare(control, order, reads)
    except BaseException as e:  # whatever it is, the script must not run here
        sys.stderr.write(f"forkserver: {type(e).__name__}: {e}\n")
        leave(1)
    serve(control, order, kept)
    return chained


def leave(code: int) -> NoReturn:
    """End this process without the interpreter's own end: no rank, no finalizers."""
    os._exit(code)


def _own_path(here: str) -> None:
    """Take this folder out of PYTHONPATH, which processes started at import inherit."""
    rest = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest.remove(here) if here in rest else None
    os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]


def _probe() -> NoReturn:
    """Tell whether this interpreter comes this way and has a torch, without importing it."""
    found = importlib.util.find_spec("torch") is not None
    text = json.dumps({"torch": found, "version": list(sys.version_info[:3])}) + "\n"
    os.write(1, text.encode())
    leave(0)


def _chain() -> bool:
    """Run the sitecustomize that this folder's hides, if there is one."""
    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as e:
        if e.name != "sitecustomize":
            raise
        if mine is not None:
            sys.modules["sitecustomize"] = mine  # the import that is under way expects it
        return False
    return True


class Reads:
    """Records which environment variables are read while it is entered."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.everything = False  # the environment was listed as a whole
        self.kind: Any = type(os.environ)

    def __enter__(self) -> Reads:
        self.get, self.iterate = self.kind.__getitem__, self.kind.__iter__
        get, iterate, names = self.get, self.iterate, self.names

        def getitem(env: Any, key: Any) -> Any:
            if isinstance(key, str):
                names.add(key)
            elif isinstance(key, bytes):
                names.add(os.fsdecode(key))
            return get(env, key)

        def iterator(env: Any) -> Any:
            self.everything = True
            return iterate(env)

        self.kind.__getitem__, self.kind.__iter__ = getitem, iterator
        return self

    def __exit__(self, *_: object) -> None:
        self.kind.__getitem__, self.kind.__iter__ = self.get, self.iterate


# Preload.


class Kept:
    """What a rank puts back to its fresh state, and what the shim checks before a fork."""

    def __init__(self) -> None:
        self.roots = roots()
        self.times = {r: _mtime(r) for r in self.roots}
        self.torch_seeded = False
        self.names: frozenset[str] = frozenset()


def roots() -> list[str]:
    """Return the folders of installed modules: only what lies there is preloaded."""
    site = sys.modules["site"]
    found = [sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")]
    with_site = getattr(site, "getsitepackages", None)
    if with_site is not None:
        found += with_site()
    if getattr(site, "ENABLE_USER_SITE", False):
        found.append(site.getusersitepackages())
    return [r for r in dict.fromkeys(found) if os.path.isdir(r)]  # noqa: PTH112


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def threads() -> int:
    """Count this process's threads, those that Python does not know of included."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def installed(name: str, where: list[str]) -> bool:
    """Say whether the module's outermost package is an installed one."""
    top = name.partition(".")[0]
    if top in sys.builtin_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or []) or [spec.origin or ""]
    return all(any(p.startswith(r + os.sep) for r in where) or p in ("built-in", "frozen") for p in places)


def imported_by(script: str) -> list[str]:
    """Return what a script imports at its top level, in order; empty if it cannot be read."""
    try:
        with open(script, "rb") as f:  # noqa: PTH123
            tree = ast.parse(f.read(4 << 20))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module)
            names += [f"{node.module}.{a.name}" for a in node.names if a.name != "*"]
    return names


def prepare(control: socket.socket, order: dict[str, Any], reads: Reads) -> Kept:
    """Import everything, and report how it went; ends the process when that is no use."""
    kept = Kept()
    script = order["script"]
    base = [str(n) for n in order["preload"]]
    dropped = set(order["dropped"])
    wanted = base + ([*imported_by(script)] if script else []) + [str(n) for n in order["learned"]]
    own = set(order["own"])
    missing = []
    for name in dict.fromkeys(wanted):
        if name in dropped or name in sys.modules or name == "__future__":
            continue
        if any(name.startswith(d + ".") for d in dropped) or not installed(name, kept.roots):
            continue
        send(control, state="importing", module=name)
        before, everything = set(reads.names), reads.everything
        try:
            if not _import(name, name in base):
                continue
        except BaseException as e:
            missing.append({"module": name, "reason": f"{type(e).__name__}: {e}"[:300]})
            if name in base:
                fail(control, name, f"{type(e).__name__}: {e}")
            continue
        why = taint((reads.names - before) & own, reads.everything and not everything)
        if why:
            send(control, state="tainted", module=name, reason=why)
            leave(1)
        if name == "torch":
            # Older ones start all processes from one fixed seed, newer ones from chance.
            kept.torch_seeded = sys.modules["torch"].initial_seed() == TORCH_SEED
    kept.names = frozenset(n.partition(".")[0] for n in set(sys.modules) - BASELINE) - {"sitecustomize"}
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # what is left in a buffer would be said by every rank
    gc.collect()
    gc.freeze()  # the collector of a rank does not touch, and so not copy, what is shared
    send(
        control,
        state="ready",
        reads=sorted(reads.names),
        modules=len(sys.modules) - len(BASELINE),
        rss=_rss(),
        missing=missing[:50],
    )
    return kept


def _import(name: str, base: bool) -> bool:
    """Import one module; False for a name that is no module (``from x import function``)."""
    if "." in name and not base:
        parent = name.rpartition(".")[0]
        if parent in sys.modules and hasattr(sys.modules[parent], name.rpartition(".")[2]):
            return False
        if importlib.util.find_spec(name) is None:
            return False
    importlib.import_module(name)
    return True


def taint(own: set[str], everything: bool) -> str:
    """Say why the newest module must not be shared between ranks; empty if it may be."""
    if threads() > 1:
        return f"it starts threads at import ({threads() - 1}); a fork would lose them"
    if own:
        return f"it reads {', '.join(sorted(own))} at import, which differs between ranks"
    if everything:
        return "it reads the whole environment at import"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it initialises CUDA at import, which no fork can use"
    return ""


def fail(control: socket.socket, name: str, reason: str) -> NoReturn:
    """Report that a module without which there is no use failed, and end."""
    send(control, state="failed", module=name, reason=reason[:500])
    leave(1)


def _rss() -> int:
    with open("/proc/self/statm", "rb") as f:  # noqa: PTH123
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Fork.


def serve(control: socket.socket, order: dict[str, Any], kept: Kept) -> None:
    """Answer the shim until it hangs up, which ends this process; returns in a rank."""
    while True:
        try:
            asked, fds = _receive_fds(control)
            count = asked["ranks"]
            if asked["op"] != "fork" or not 0 < count <= MAX_RANKS:
                raise Gone(f"cannot understand {asked['op']!r}")
            while len(fds) < count:
                _, new = _receive_fds(control)
                fds += new
            why = stale(order, kept)
            if why:
                for fd in fds:
                    os.close(fd)
                send(control, state="refused", reason=why)
                continue
            rank = fork(fds)
            if rank is not None:
                control.close()
                for i, fd in enumerate(fds):
                    if i != rank:
                        os.close(fd)
                become(socket.socket(fileno=fds[rank]), kept)
                return
            for fd in fds:
                os.close(fd)
            send(control, state="forked")
        except BaseException as e:
            if not isinstance(e, Gone):
                sys.stderr.write(f"forkserver: {type(e).__name__}: {e}\n")
            leave(0)


def _receive_fds(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, fds, _, _ = socket.recv_fds(control, 4, FDS_A_MESSAGE)
    if not head:
        raise Gone("end of file")
    head += _exactly(control, 4 - len(head)) if len(head) < 4 else b""
    (size,) = struct.unpack(">I", head)
    if not 0 < size <= MAX_FRAME:
        raise Gone(f"a frame of {size} bytes")
    for fd in fds:
        os.set_inheritable(fd, False)
    return json.loads(_exactly(control, size)), list(fds)


def stale(order: dict[str, Any], kept: Kept) -> str:
    """Say why a rank forked now would not be what a fresh start gives; empty if it would."""
    if threads() > 1:
        return f"it has {threads()} threads now, and a fork would lose them"
    for root, then in kept.times.items():
        if _mtime(root) != then:
            return f"{root} has changed since its modules were imported"
    return "" if order["safe"] else hidden(order["script"], kept)


def hidden(script: str, kept: Kept) -> str:
    """Say which module beside the script would be found before an installed one."""
    first = os.path.dirname(os.path.realpath(script)) if script else os.getcwd()  # noqa: PTH109, PTH120
    try:
        entries = [] if first in kept.roots else os.listdir(first)  # noqa: PTH208
    except OSError:
        entries = []
    for entry in entries:
        name = entry.partition(".")[0]
        inside = os.path.join(first, entry)  # noqa: PTH118
        package = os.path.join(inside, "__init__.py")  # noqa: PTH118
        if name in kept.names and (entry.endswith((".py", ".so", ".pyc")) or os.path.exists(package)):  # noqa: PTH110
            return f"{inside} hides the installed module {name} from the script"
    return ""


def fork(fds: list[int]) -> int | None:
    """Start one rank for each socket by a middle process; returns its index in a rank."""
    middle = os.fork()
    if middle:
        _, status = os.waitpid(middle, 0)
        if status != 0:
            raise OSError(f"the middle process ended with status {status}")
        return None
    try:
        for i in range(len(fds)):
            if os.fork() == 0:
                return i
    except OSError as e:
        os.write(2, f"forkserver: fork: {e}\n".encode())
        leave(1)
    leave(0)


# A rank, between its fork and its script.


def become(ctl: socket.socket, kept: Kept) -> None:
    """Turn this fork into a rank and wait for the word to go; ends the process otherwise."""
    try:
        spec = receive(ctl)
        _place(spec)
        _streams(spec)
        try:
            os.chdir(spec["dir"])
        except OSError as e:
            raise Refused(f"{e.strerror}", errno=e.errno or 0) from None
        _environment(spec["env"])
        _fresh(spec, kept)
        send(ctl, pid=os.getpid())
        if ctl.recv(1) != b"g":
            leave(1)
        # The word may come long after the fork, and a reader counts from here.
        ctl.close()
    except Refused as e:
        _complain(ctl, e)
    except Gone:
        leave(1)  # the shim gave up; nobody listens
    except BaseException as e:  # whatever it is, no script may run in such a process
        _complain(ctl, Refused(f"prepare a rank: {type(e).__name__}: {e}"))


class Refused(Exception):
    """A rank cannot become what it should; errno is that of its folder, else 0."""

    def __init__(self, text: str, errno: int = 0) -> None:
        super().__init__(text)
        self.errno = errno


def _complain(ctl: socket.socket, e: Refused) -> NoReturn:
    with contextlib.suppress(OSError):
        send(ctl, error=str(e) or "no reason", errno=e.errno)
    leave(1)


def _place(spec: dict[str, Any]) -> None:
    """Take the place of a rank: session, cgroups, parent."""
    os.setsid()
    for name in ("procs", "tasks"):
        path = spec.get(name)
        if path:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(fd, b"0")
                finally:
                    os.close(fd)
            except OSError as e:
                raise Refused(f"join cgroup {path}: {e.strerror}") from None
    if cpus := spec.get("cpus"):
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError) as e:
            raise Refused(f"bind to CPUs {cpus}: {e}") from None
    shim = spec["shim"]
    deadline = time.monotonic() + ADOPT_S
    while os.getppid() != shim:
        if time.monotonic() > deadline:
            raise Refused(f"process {os.getppid()} is its parent, not the shim {shim}")
        time.sleep(0.0002)  # the middle process is ending: nothing else tells of it
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise Refused(f"set the parent death signal: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != shim:
        leave(1)  # the shim died before the signal was set


def _streams(spec: dict[str, Any]) -> None:
    """Point the standard streams at the rank's files; their Python objects stay the same."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    for name, fd in (("stdout", 1), ("stderr", 2)):
        try:
            new = os.open(spec[name], flags, 0o640)
        except OSError as e:
            raise Refused(f"open output file {spec[name]}: {e.strerror}") from None
        os.dup2(new, fd)
        os.close(new)


def _environment(pairs: list[str]) -> None:
    """Make the environment exactly this one, for this process and for who looks at it."""
    os.environ.clear()
    for pair in pairs:
        name, _, value = pair.partition("=")
        os.environ[name] = value


def expose(argv: list[str], pairs: list[str]) -> None:
    """Show command and environment in /proc, as after an exec. A kernel may refuse."""
    words = b"".join(os.fsencode(w) + b"\0" for w in argv)
    marks = b"".join(os.fsencode(p) + b"\0" for p in pairs)
    size = len(words) + len(marks)
    mmap = libc.mmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    at = mmap(None, size, 3, 0x22, -1, 0)  # private, anonymous, for as long as the process lives
    if at is None or at == ctypes.c_void_p(-1).value:
        return
    ctypes.memmove(at, words + marks, size)
    with open("/proc/self/stat", "rb") as f:  # noqa: PTH123
        fields = f.read().rpartition(b")")[2].split()
    sbrk = libc.sbrk
    sbrk.restype, sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    stat: Callable[[int], int] = lambda number: int(fields[number - 3])  # noqa: E731
    # struct prctl_mm_map: code, data, brk, stack, arguments, environment, auxv, its size, no exe
    record = struct.pack(
        "=12QII",
        *(stat(n) for n in (26, 27, 45, 46, 47)),
        sbrk(0),
        stat(28),
        at,
        at + len(words),
        at + len(words),
        at + size,
        0,
        0,
        0xFFFFFFFF,
    )
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, record, len(record), 0)


def _fresh(spec: dict[str, Any], kept: Kept) -> None:
    """Put back what a fresh interpreter has of its own and a fork shares."""
    # The words after the script are the rank's own: they may hold ${local_rank}.
    given, args = len(sys.argv) - 1, spec.get("args", [])
    with open("/proc/self/cmdline", "rb") as f:  # noqa: PTH123
        words = [os.fsdecode(w) for w in f.read().split(b"\0")[:-1]]
    for line in (sys.argv, sys.orig_argv, words):
        line[len(line) - given :] = args
    expose(words, spec["env"])
    modules = sys.modules
    torch = modules.get("torch")
    if torch is not None:
        if kept.torch_seeded:
            torch.default_generator.manual_seed(TORCH_SEED)
        else:
            torch.default_generator.seed()
    if "numpy.random.mtrand" in modules:
        modules["numpy.random.mtrand"].seed()
    process: Any = modules.get("multiprocessing.process")
    if process is not None:
        config = process.current_process()._config
        config["authkey"] = type(config["authkey"])(os.urandom(32))
        process.ORIGINAL_DIR = os.getcwd()  # noqa: PTH109
    # At its end an interpreter collects what it has; what is frozen would count as leaked.
    atexit.register(gc.unfreeze)
    if spec.get("learn"):
        before, pid = frozenset(modules), os.getpid()

        def report() -> None:
            _report(spec["learn"], before, kept.roots, pid)

        atexit.register(report)
        # For the package troupe, which takes it at the first step: ranks are often killed.
        vars(sys)[IMPORTED] = report


def _report(path: str, before: frozenset[str], where: list[str], pid: int) -> None:
    """Write what the script imported of installed modules, to be preloaded next time."""
    if os.getpid() != pid:
        return  # a child that the rank forked
    try:
        names = list(_new(before, where))[:MAX_LEARNED]
        part = f"{path}.part"
        with open(part, "w") as f:  # noqa: PTH123
            json.dump(names, f)
        os.replace(part, path)  # noqa: PTH105
    except Exception:  # noqa: S110 -- at the end of somebody's program this must not show
        pass


def _new(before: frozenset[str], where: list[str]) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in before or not isinstance(file, str):
            continue
        if any(file.startswith(r + os.sep) for r in where):
            yield name
