"""What the signals of a run cost on this machine: some pairs are timed before the first shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tamis.data import Node, Signal
from tamis.graph import topological
from tamis.run.progress import duration

#: How many pairs are timed, and how many there must be to score.
TIMED, WORTH_PAIRS = 32, 500

#: Shorter work is not announced.
_WORTH_SECONDS = 20.0

_NAMED = 4  # signals in the message, the slowest first


@dataclass(frozen=True)
class Share:
    """How much of a run's work is done at once.

    Attributes:
        workers: that read, decode and compute what needs no network.
        devices: that compute networks, each as fast as the one that was timed.
        overlap: whether networks run while the workers read: on a GPU. On a CPU both need the same cores.
    """

    workers: float = 1
    devices: float = 1
    overlap: bool = False


def announcement(
    signals: Sequence[tuple[str, Signal]], took: Mapping[Node | None, float], pairs: int, share: Share
) -> str:
    """Returns what a run will cost, as a sentence, and what to leave out to make it short; "" if it is short.

    A feature that several signals need counts for each of them in equal parts.

    Args:
        signals: the signals to compute, with their labels.
        took: seconds for one pair, by node; None is reading and decoding.
        pairs: pairs to score.
        share: what is done at once.
    """
    seconds = {node: pairs * one / (share.workers if _on_host(node) else share.devices) for node, one in took.items()}
    needed = {label: set(topological([signal])) for label, signal in signals}
    users = {node: {label for label, nodes in needed.items() if node in nodes} for node in took}

    def total(without: set[str]) -> float:
        """Returns the seconds of the run if some signals are left out."""
        left = {node: one for node, one in seconds.items() if not users[node] or users[node] - without}
        hosts = sum(one for node, one in left.items() if _on_host(node))
        networks = sum(left.values()) - hosts
        return max(hosts, networks) if share.overlap else hosts + networks

    whole = total(set())
    if whole < _WORTH_SECONDS:
        return ""
    costs = {
        label: sum(seconds[node] / len(users[node]) for node in seconds if label in users[node]) for label in needed
    }
    costs["reading"] = sum(one for node, one in seconds.items() if not users[node])
    ordered = sorted((label for label in costs if costs[label] >= 1), key=lambda label: -costs[label])
    text = f"about {duration(whole)} for {pairs:,} pairs: "
    text += ", ".join(f"{label} {duration(costs[label])}" for label in ordered[:_NAMED])
    if rest := sum(costs[label] for label in ordered[_NAMED:]):
        text += f", others {duration(rest)}"
    # The slow one may be a feature: then all signals that need it must go.
    sets = [some for some in users.values() if some and len(some) < len(needed) and total(some) <= whole / 2]
    if sets:
        slow = min(sets, key=lambda some: (len(some), total(some)))
        what, it = " and ".join(sorted(slow)), "it" if len(slow) == 1 else "them"
        text += f". Without {what} it takes {duration(total(slow))}; the same command adds {it} later"
    return text


def _on_host(node: Node | None) -> bool:
    return node is None or node.host
