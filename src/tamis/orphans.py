"""Workers that die with the process that started them: one that outlives it would go on writing for nobody."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

#: `PR_SET_PDEATHSIG` of Linux's prctl(2): the signal that a process gets when its parent dies.
_SET_DEATH_SIGNAL = 1

_LOOK_SECONDS = 1.0


def die_with(parent: int) -> None:
    """Has this process killed when its parent dies, however that dies; ends it now if it is dead already.

    Linux does it at once; elsewhere a thread looks every second. (The kernel means the thread that started us: engines
    start workers in the thread that waits for them.)
    """
    if sys.platform == "linux" and _signalled():
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)
        return
    threading.Thread(target=_watch, args=(parent,), name="tamis-parent", daemon=True).start()


def _signalled() -> bool:
    try:
        return bool(ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):  # a C library without it
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
