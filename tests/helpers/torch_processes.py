"""Several processes that train together, as torchrun starts them."""

import os
import socket
from collections.abc import Callable
from typing import Any

from processes import forking


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _as_one_of(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    work(*arguments)


def on_processes(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """Runs a function of a test module in so many processes at once; an error in one of them is raised here."""
    import torch.multiprocessing as mp

    forking()  # says what their parent has imported
    port = _free_port()
    mp.start_processes(_as_one_of, (count, port, work, arguments), nprocs=count, start_method="forkserver")
