"""What a step takes of the memory, and what is free."""

from pathlib import Path

import pytest
import torch

from tamis.core import machine
from tamis.train.step import peak_bytes


def test_the_peak_is_what_exists_at_once_in_the_backward_pass_too() -> None:
    weight = torch.zeros(10, 10, requires_grad=True)  # there before: 400 bytes that do not count
    weight.grad = torch.zeros(10, 10)

    def forgetful() -> None:
        one = torch.ones(1000)  # 4,000 bytes
        del one
        torch.ones(500).view(5, 100)  # 2,000; a view takes nothing

    def step() -> None:
        rows = torch.ones(100, 10)  # 4,000 bytes
        (rows @ weight).pow(2).sum().backward()  # two of 4,000, and as much for each gradient

    assert peak_bytes(forgetful) == 4000
    forwards = 3 * 4000 + 4
    assert forwards < peak_bytes(step) <= forwards + 4 * 4000 + 400


def test_free_memory_is_what_a_container_may_still_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_groups", lambda controller: [tmp_path])
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.free_memory() > 1 << 20
    (tmp_path / "memory.max").write_text(f"{1 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 19}\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 1024\nactive_file 7\n")
    assert machine.free_memory() == (1 << 19) + 1024
    (tmp_path / "memory.current").write_text(f"{1 << 21}\n")
    (tmp_path / "memory.stat").unlink()
    assert machine.free_memory() == 0
