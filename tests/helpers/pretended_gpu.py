"""A pretended GPU: tensors in memory that say they are on "cuda:0", and refuse what a real GPU's would refuse.

`on_gpu` patches `torch.cuda`, so that torch seems to see GPUs, and watches every call of torch in this thread. A tensor
that is made with `device="cuda"`, or moved there, is marked, and so is everything that is computed from it. As on a
real GPU, a call that mixes devices raises RuntimeError, and NumPy gets nothing before `.cpu()`. Numbers are the CPU's:
what only a GPU has (its kernels, TF32, its memory) is not pretended.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._functorch import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")

#: Calls that may mix devices: moves, and assignments that move. Of indices see `_mixes`.
_MOVES = {"to", "copy_", "type_as", "cuda", "cpu", "__getitem__", "__setitem__", "_has_compatible_shallow_copy_type"}
#: Calls that take no number of the CPU next to tensors of a GPU, as most do.
_STRICT = {"cat", "stack", "concat", "embedding", "linear", "gather", "index_select", "scatter_", "matmul"}
_RANDOM = {"dropout", "bernoulli", "bernoulli_", "normal_", "uniform_", "multinomial", "rand", "randn", "randint"}
_RANDOM |= {"rand_like", "randn_like", "random_", "exponential_"}


def device_of(tensor: torch.Tensor) -> torch.device:
    found: torch.device = tensor.__dict__.get("_pretended", CPU)
    return found


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0  # that computed on a GPU
        self.full = 0  # how often memory runs out, at the next layers with several rows
        self.random = {number: torch.Generator().manual_seed(number).get_state() for number in range(2)}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        owner = getattr(getattr(function, "__self__", None), "__name__", "")  # "device" of `Tensor.device.__get__`
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        devices = {device_of(one) for one in tensors}
        if name == "__get__" and owner in ("device", "is_cuda", "is_cpu") and devices != {CPU}:
            return {"device": device_of(args[0]), "is_cuda": True, "is_cpu": False}[owner]
        if name == "get_device" and devices != {CPU}:
            return device_of(args[0]).index
        if name == "__set__":
            if owner == "data":
                _mark([args[0]], device_of(args[1]))
            return function(*args, **kwargs)
        if name in ("numpy", "__array__", "from_numpy") and devices - {CPU}:
            raise TypeError(f"can't convert {devices.pop()} device type tensor to numpy. Use Tensor.cpu() first.")
        if name == "pin_memory":
            return args[0]
        if _mixes(name, args, tensors, devices):
            found = " and ".join(sorted(map(str, devices)))
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {found} ({name})")
        where = next(iter(devices - {CPU}), CPU)
        args, kwargs, asked = _on_cpu(name, args, kwargs)
        if asked is None and name in ("__setitem__", "copy_"):
            asked = device_of(args[0])
        if name in _RANDOM and (generator := kwargs.get("generator")) is not None and (asked or where) != CPU:
            raise RuntimeError(
                f"Expected a '{asked or where}' device type for generator but found '{generator.device}'"
            )
        where = where if asked is None else asked
        if where == CPU and not devices - {CPU}:
            return function(*args, **kwargs)
        self.calls += 1
        if self.full and name in ("conv2d", "embedding") and len(args[0]) > 1:
            self.full -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if name == "histc":  # of integers, which the CPU does not count
            args = (args[0].float(), *args[1:])
        with self._randomness(name, where):
            made = function(*args, **kwargs)
        if asked is not None and any(made is one for one in tensors) and device_of(made) != asked:
            made = made.clone()
        return _mark(made, where)

    @contextmanager
    def _randomness(self, name: str, where: torch.device) -> Iterator[None]:
        """Each GPU draws from its own generator."""
        if name not in _RANDOM or where == CPU:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self.random[where.index])
        yield
        self.random[where.index] = torch.get_rng_state()
        torch.set_rng_state(before)


def _mixes(name: str, args: Any, tensors: list[Any], devices: set[torch.device]) -> bool:
    if name in ("__getitem__", "__setitem__", "index_put_"):
        base = device_of(args[0])
        if any(device_of(one) not in (CPU, base) for one in tree_leaves(args[1]) if isinstance(one, torch.Tensor)):
            return True  # a GPU's tensor takes indices of the CPU, but not the other way round
        value, tensor_index = args[-1], any(isinstance(one, torch.Tensor) for one in tree_leaves(args[1]))
        put = name != "__getitem__" and tensor_index and isinstance(value, torch.Tensor) and value.ndim
        return bool(put and device_of(value) != base)
    if name in _MOVES or len(devices) < 2:
        return False
    numbers = name not in _STRICT and all(device_of(one) != CPU or one.ndim == 0 for one in tensors)
    return not numbers or len(devices - {CPU}) > 1


def _on_cpu(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any], torch.device | None]:
    """Puts the CPU in place of the device in a call's arguments, and returns that device; None: it names none."""
    if name == "cpu":
        return args, kwargs, CPU
    if name == "cuda":
        return (args[0],), {}, _indexed("cuda" if len(args) < 2 else args[1])
    if name in ("to", "type_as") and len(args) > 1 and isinstance(args[1], torch.Tensor):
        return args, kwargs, device_of(args[1])
    if name == "to" and len(args) > 1 and isinstance(args[1], str | torch.device | int) and str(args[1]) != "meta":
        return (args[0], CPU, *args[2:]), kwargs, _indexed(args[1])
    if kwargs.get("device") is None or str(kwargs["device"]) == "meta":
        return args, kwargs, None
    return args, kwargs | {"device": CPU}, _indexed(kwargs["device"])


def _indexed(device: Any) -> torch.device:
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _mark(made: Any, where: torch.device) -> Any:
    for one in tree_leaves(made):
        if isinstance(one, torch.Tensor):
            one._pretended = where  # type: ignore[attr-defined]
    return made


def _marking(make: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A function that no watch sees, which now marks what it makes as its argument at `place` is marked."""
    return lambda *args: _mark(make(*args), device_of(args[place])) if device_of(args[place]) != CPU else make(*args)


@contextmanager
def on_gpu(*, bf16: Sequence[bool] = (True, True), free: int = 8 << 30) -> Iterator[_Watch]:
    """Pretends GPUs with and without bf16 while the block runs; the value's `calls` counts what computed on them."""
    watch, current = _Watch(), [0]

    @contextmanager
    def used(device: Any) -> Iterator[None]:
        current.append(_indexed(device).index)
        yield
        current.pop()

    facts: dict[str, Any] = {
        "is_available": lambda: True,
        "device": used,
        "device_count": lambda: len(bf16),
        "current_device": lambda: current[-1],
        "is_bf16_supported": lambda including_emulation=True: including_emulation or bf16[current[-1]],
        "get_device_capability": lambda device=None: (8, 0) if bf16[current[-1]] else (7, 5),
        "get_device_name": lambda device=None: "a pretended GPU",
        "mem_get_info": lambda device=None: (free, free),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "get_rng_state": lambda device="cuda": watch.random[_indexed(device).index],
        "set_rng_state": lambda state, device="cuda": watch.random.update({_indexed(device).index: state}),
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: None,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in facts.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.Tensor, "_make_subclass", staticmethod(_marking(torch.Tensor._make_subclass, 1)))
        for name in ("_add_batch_dim", "_remove_batch_dim"):  # of `torch.vmap`
            patch.setattr(vmap, name, _marking(getattr(vmap, name), 0))
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # threads do not inherit the watch
        with watch:
            yield watch
