"""Faults of the disk: from the Nth write of a process on, the folder of the cases is full or read-only.

SLEUTH_TEST_DISK is `ENOSPC:3:/path/to/cases`: from the third write of each process on. With SLEUTH_TEST_WRITES=FOLDER
none is refused, and each process counts its writes in a file there. With SLEUTH_TEST_PAUSE=FILE a process that is about to put a case.json
into its place makes FILE and waits, so that it can be killed right there.
"""

import builtins
import errno
import io
import os
import time


def install() -> None:
    disk, pause = os.environ.get("SLEUTH_TEST_DISK"), os.environ.get("SLEUTH_TEST_PAUSE")
    if disk:
        name, number, folder = disk.split(":", 2)
        limit_writes(getattr(errno, name), int(number), folder)
    if pause:
        wait_before_case(pause)


def limit_writes(code: int, first: int, folder: str) -> None:
    seen, counts = [0], os.environ.get("SLEUTH_TEST_WRITES")

    def refuse(path) -> None:
        if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(folder):
            return
        seen[0] += 1
        if counts:
            with real_open(os.path.join(counts, str(os.getpid())), "a") as file:
                file.write("x")
        elif seen[0] >= first:
            raise OSError(code, os.strerror(code), os.fsdecode(path))

    real_open, real_mkdir, real_os_open = io.open, os.mkdir, os.open

    def opened(file, mode="r", *args, **kwargs):
        if set(mode) & set("wax+"):
            refuse(file)
        return real_open(file, mode, *args, **kwargs)

    def made(path, *args, **kwargs):
        if kwargs.get("dir_fd") is None:
            refuse(path)
        return real_mkdir(path, *args, **kwargs)

    def os_opened(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR) and kwargs.get("dir_fd") is None:
            refuse(path)
        return real_os_open(path, flags, *args, **kwargs)

    builtins.open = io.open = opened
    os.mkdir, os.open = made, os_opened


def wait_before_case(flag: str) -> None:
    real = os.replace

    def replace(source, target, *args, **kwargs):
        if os.fsdecode(target).endswith("case.json") and not os.path.exists(flag):
            with open(flag, "w"):
                pass
            time.sleep(20)
        return real(source, target, *args, **kwargs)

    os.replace = os.rename = replace
