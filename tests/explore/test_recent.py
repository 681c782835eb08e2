"""What was asked for last is remembered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tamis.explore.recent import Recent


def test_what_was_not_asked_for_the_longest_is_forgotten_first() -> None:
    recent: Recent[str, int] = Recent(2)
    assert recent.put("a", 1) == 1
    recent.put("b", 2)
    assert recent.get("a") == 1  # asked for after b
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (1, None, 3)
    recent.put("a", 4)
    recent.put("d", 5)
    assert (recent.get("a"), recent.get("c"), recent.get("d")) == (4, None, 5)


def test_some_or_all_can_be_forgotten() -> None:
    recent: Recent[str, int] = Recent(5)
    for number, key in enumerate(["label 1", "words", "label 2"]):
        recent.put(key, number)
    recent.forget(lambda key: "label" in key)
    assert [recent.get(key) for key in ("label 1", "words", "label 2")] == [None, 1, None]
    recent.forget()
    assert recent.get("words") is None


def test_threads_may_share_it() -> None:
    recent: Recent[int, int] = Recent(3)

    def work(number: int) -> bool:
        recent.put(number % 7, number % 7)
        recent.forget(lambda key: key == number % 5)
        return recent.get(number % 7) in (None, number % 7)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(5_000)))
    assert sum(recent.get(key) is not None for key in range(7)) <= 3
