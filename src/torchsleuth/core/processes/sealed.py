"""Processes whose doing stays in them: what they change is theirs alone, and ends with them. Reading is free.

A *sealed* process is a fork. Its descriptors lead nowhere, memory it shared with others is its own, and the kernel ends
it (SIGSYS) where it would open a file for writing, change a name in a file system, make a socket, start a process or
signal one. A *confined* one is a program of its own, for which a device's driver has to work: it gets an error (EACCES)
where it would write outside of one folder (its TMPDIR) and of /dev, reach the network, or signal others; what it
starts is confined as well. Python runs this file for that: `python sealed.py FOLDER COMMAND...`.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import faulthandler
import io
import os
import platform
import re
import signal
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

# Of memory shared with other processes, how much is copied at most.
MOST_SHARED_BYTES = 1 << 30

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_FILTER_MODE = 2
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _END, _NO_SUCH_CALL = 0x7FFF0000, 0x80000000, 0x00050000 | 38
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_WRITES = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
_NEW_THREAD = 0x00010000

# By machine: its number, the calls that end the process, open and openat, clone, clone3. Among those that end it:
# creat, truncate, rename, mkdir, rmdir, link, unlink, symlink, mknod, chmod, chown, utime, setxattr, removexattr and
# their variants; socket; fork, vfork, exec; kill and its variants; System V memory, queues and semaphores; mount;
# ptrace; process_vm_writev; bpf; io_uring, which would do any of it unseen.
_MACHINES = {
    "x86_64": (
        0xC000003E,
        "29 30 41 57 58 59 62 64 65 68 69 76 82 83 84 85 86 87 88 90 91 92 93 94 101 129 132 133 165 166 188 189 190 "
        "197 198 199 200 234 235 240 258 259 260 261 263 264 265 266 268 280 311 316 321 322 424 425 437 452",
        ((2, 1), (257, 2)),
        56,
        435,
    ),
    "aarch64": (
        0xC00000B7,
        "5 6 7 14 15 16 33 34 35 36 37 38 39 40 45 52 53 54 55 88 117 129 130 131 138 180 186 189 190 193 194 196 198 "
        "221 271 276 280 281 424 425 437 452",
        ((56, 2),),
        220,
        435,
    ),
}


class CannotSeal(RuntimeError):
    """This machine cannot keep a process to itself; says why."""


def why_not_sealable() -> str | None:
    """Why a process of this machine cannot be sealed; None where it can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"processes of {sys.platform} on {platform.machine()} cannot be sealed off"
    return None


def seal(keep: Collection[int]) -> None:
    """Seals this process, which must be a fork with one thread; only the descriptors `keep` still lead somewhere.

    Used as `if os.fork() == 0: seal([answer]); os.write(answer, b"..."); os._exit(0)`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    sys.dont_write_bytecode = True
    from torchsleuth.core.processes.tree import be_first_to_go  # not there where this file is run by itself

    be_first_to_go()
    _own_shared_memory(libc)
    _lead_nowhere(keep)
    faulthandler.disable()  # its file is closed, which Python may warn of: to nobody from here on
    _refuse(libc)


def run_openmp_alone() -> bool:
    """Has parallel parts of OpenMP code run by the one thread a fork has; False where no OpenMP library is found.

    GNU's would wait for the threads of the process it was forked from. What the library says about the number of
    threads stays as it is: compiled code is only taken where that has not changed.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        libraries = set(re.findall(r"/\S*/lib(?:gomp|iomp5|omp)[-\w.]*\.so[.\w]*", file.read()))
    for library in libraries:
        ctypes.CDLL(library).omp_set_max_active_levels(0)
    return bool(libraries)


def _own_shared_memory(libc: ctypes.CDLL) -> None:
    """Puts a private copy in place of each writable mapping that other processes see."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        shared = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .w.s", file.read(), re.MULTILINE)
    spans = [(int(low, 16), int(high, 16) - int(low, 16)) for low, high in shared]
    if sum(size for _, size in spans) > MOST_SHARED_BYTES:
        raise CannotSeal("more memory is shared with other processes than can be copied")
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for address, size in spans:
        content = ctypes.string_at(address, size)
        private_anonymous_fixed = 0x02 | 0x20 | 0x10
        if libc.mmap(address, size, 3, private_anonymous_fixed, -1, 0) != address:
            raise CannotSeal("memory shared with other processes cannot be copied")
        ctypes.memmove(address, content, size)


def _lead_nowhere(keep: Collection[int]) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (*keep, nowhere):
            try:
                os.dup2(nowhere, int(name))
            except OSError:
                pass  # the one the list was read from


def _refuse(libc: ctypes.CDLL) -> None:
    _enforce(libc, b"".join(_filter(*_MACHINES[platform.machine()])))


def _enforce(libc: ctypes.CDLL, program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a length, padding, and the address of the instructions
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    refused = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _FILTER_MODE, header, 0, 0
    )
    if refused:
        raise CannotSeal(f"the kernel does not seal processes: {os.strerror(ctypes.get_errno())}")


def _filter(
    machine: int, ending: str, opening: tuple[tuple[int, int], ...], clone: int, clone3: int
) -> Iterator[bytes]:
    """The program that the kernel runs for each system call."""
    step: Callable[..., bytes] = lambda code, k, yes=0, no=0: struct.pack("HBBI", code, yes, no, k)  # noqa: E731
    yield step(_LOAD, _ARCH)
    yield step(_EQUAL, machine, 1, 0)
    yield step(_RETURN, _END)
    yield step(_LOAD, _NUMBER)
    for number in ending.split():
        yield step(_EQUAL, int(number), 0, 1)
        yield step(_RETURN, _END)
    yield step(_EQUAL, clone3, 0, 1)
    yield step(_RETURN, _NO_SUCH_CALL)  # its flags cannot be seen from here; libc then takes the other one
    masks = [(call, position, _WRITES, _ALLOW, _END) for call, position in opening]
    masks.append((clone, 0, _NEW_THREAD, _END, _ALLOW))
    for call, position, mask, if_none, if_some in masks:
        yield step(_EQUAL, call, 0, 5)
        yield step(_LOAD, _FIRST_ARGUMENT + 8 * position)
        yield step(_AND, mask)
        yield step(_EQUAL, 0, 0, 1)
        yield step(_RETURN, if_none)
        yield step(_RETURN, if_some)
    yield step(_RETURN, _ALLOW)


def fill_fresh_memory(byte: int) -> None:
    """From now on memory that nobody wrote to holds other bytes than elsewhere: `fill_fresh_memory(0x55)`."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(-6, byte)  # M_PERTURB, of glibc


# ---- confined


# Landlock's calls have one number everywhere; the first release that also knows how to refuse cutting files off.
_CREATE, _ADD, _RESTRICT, _LEAST_LANDLOCK = 444, 445, 446, 3
# Writing, removing and making of every kind, moving elsewhere, cutting off; TCP; abstract sockets and signals.
_CHANGES, _TCP, _OTHERS = 0x7FF2, 0x3, 0x3
_SOCKET = {"x86_64": 41, "aarch64": 198}
_INTERNET, _REFUSED = (2, 10), 0x00050000 | errno.EACCES


def why_not_confinable() -> str | None:
    """Why a program cannot be run on this machine so that it changes nothing outside; None where it can."""
    if why := why_not_sealable():
        return why
    if _landlock(ctypes.CDLL(None, use_errno=True)) < _LEAST_LANDLOCK:
        return "this kernel cannot keep a program from changing files (no Landlock)"
    return None


def confined(command: Sequence[str], folder: str) -> list[str]:
    """The command that runs `command` so that it can write into `folder` and nowhere else.

    >>> confined(["python", "train.py"], "/scratch")[-3:]
    ['/scratch', 'python', 'train.py']
    """
    return [sys.executable, "-I", "-S", __file__, folder, *command]


def _landlock(libc: ctypes.CDLL) -> int:
    return int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1))


def _confine(folder: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    known = struct.pack("QQQ", _CHANGES, _TCP, _OTHERS)[: {3: 8, 4: 16, 5: 16}.get(_landlock(libc), 24)]
    rules = libc.syscall(_CREATE, known, ctypes.c_size_t(len(known)), 0)
    for path in (folder, "/dev", "/proc"):
        allowed = struct.pack("=Qi", _CHANGES, os.open(path, os.O_PATH | os.O_CLOEXEC))
        if libc.syscall(_ADD, rules, 1, allowed, 0):
            raise CannotSeal(f"writing cannot be kept to {path}: {os.strerror(ctypes.get_errno())}")
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT, rules, 0):
        raise CannotSeal(f"the kernel does not confine processes: {os.strerror(ctypes.get_errno())}")
    step = struct.Struct("HBBI")
    machine, number = _MACHINES[platform.machine()][0], _SOCKET[platform.machine()]
    program = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 0, 5, machine), (_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, 3, number)]
    program += [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 2, 0, _INTERNET[0]), (_EQUAL, 1, 0, _INTERNET[1])]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSED)]
    _enforce(libc, b"".join(step.pack(*each) for each in program))


def write_aside(folder: str) -> None:
    """In a confined program: what its Python code writes elsewhere lies in `folder` instead, where it finds it again.

    A log that cannot be opened would end it. Used as `write_aside("/scratch")`, before the program begins.
    """
    opened, made, renamed = open, os.mkdir, os.rename

    def aside(path: Any) -> str:
        return folder + "/aside" + os.path.abspath(os.fsdecode(path))

    def open_aside(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if isinstance(file, int) or os.fsdecode(file).startswith(folder):
            return opened(file, mode, *more, **named)
        other = aside(file)
        if not os.path.exists(other):
            try:
                return opened(file, mode, *more, **named)
            except (PermissionError, FileNotFoundError):
                where = os.path.dirname(os.path.abspath(os.fsdecode(file))), os.path.dirname(other)
                if not any(map(os.path.isdir, where)) or set(mode).isdisjoint("wax+"):
                    raise
            os.makedirs(os.path.dirname(other), exist_ok=True)
            if os.path.isfile(file) and "w" not in mode:
                with opened(file, "rb") as before, opened(other, "wb") as copy:
                    copy.write(before.read())
        return opened(other, mode, *more, **named)

    def make_aside(path: Any, *more: Any, **named: Any) -> None:
        try:
            made(path, *more, **named)
        except (PermissionError, FileNotFoundError) as error:
            if isinstance(error, PermissionError) or os.path.isdir(os.path.dirname(aside(path))):
                os.makedirs(aside(path), exist_ok=True)
            else:
                raise

    def rename_aside(source: Any, target: Any, **named: Any) -> None:
        if os.path.exists(aside(source)):
            source, target = aside(source), aside(target)
            os.makedirs(os.path.dirname(target), exist_ok=True)
        renamed(source, target, **named)

    builtins.open = io.open = open_aside
    os.mkdir = make_aside
    os.rename = os.replace = cast(Any, rename_aside)


if __name__ == "__main__":
    _confine(sys.argv[1])
    os.environ["TMPDIR"] = sys.argv[1]
    os.execvp(sys.argv[2], sys.argv[2:])
