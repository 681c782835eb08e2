"""Models of the Hugging Face hub: from this machine's cache, else fetched, where there is a network.

Nothing here waits for a hub that is silent: every question has a deadline, and what cannot be had ends in advice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from tamis.errors import ModelError, needs_extra
from tamis.models.folder import PATTERNS, PICKLES, complete
from tamis.models.registry import BUILT_IN, COPIES, HUB, job_of

log = logging.getLogger(__name__)

T = TypeVar("T")

_HUB_SECONDS = 5.0  # a hub that does not answer by then is not there
_LISTING_SECONDS = 15.0  # nor is one that has not told the files of a model by then


def cached(reference: str) -> Path | None:
    """Returns the folder of a hub model in this machine's cache, or None where it is not there with all its weights.

    Raises:
        ModelError: the reference is not a Hugging Face id.
        DependencyError: huggingface_hub is not installed.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise needs_extra("huggingface_hub", "clip") from error
    known = HUB.get(reference)
    for revision in dict.fromkeys(["main", (known and known.revision) or "main"]):
        try:
            found = huggingface_hub.snapshot_download(
                reference, revision=revision, local_files_only=True, allow_patterns=list(PATTERNS)
            )
        except HFValidationError as error:
            raise ModelError(f"{reference!r} is not a Hugging Face id: {error}") from error
        except LocalEntryNotFoundError:
            continue
        if complete(Path(found)):
            return Path(found)
    return None


def from_hub(reference: str) -> Path:
    """Returns the folder of a hub model, from this machine's cache, else fetched now.

    Raises:
        ModelError: it is not a Hugging Face id, or not here and cannot be fetched; the message says what to do.
        DependencyError: huggingface_hub is not installed.
    """
    found = cached(reference)
    if found is not None:
        return found
    known = HUB.get(reference)
    revision = known.revision if known else "main"
    found = _fetched(reference, revision, [*PATTERNS, "README.md"])  # the card, which has the licence
    if not complete(found):
        raise ModelError(
            f"the hub has no complete safetensors of {reference!r} at revision {revision or 'main'}, and pickles "
            f"are refused, since they can run code when opened: run `tamis convert {reference} OUT`, which reads "
            f"nothing but tensors from them, and name the folder OUT as the model; {_meanwhile(reference)}"
        )
    return found


def with_pickles(reference: str) -> Path:
    """Returns the folder of a hub model of any layout, pickles too, from this machine's cache, else fetched now.

    For `tamis convert` alone, which opens pickles in a way of its own.

    Raises:
        ModelError, DependencyError: as of `from_hub`.
    """
    found = cached(reference)
    if found is not None:
        return found  # which needs no conversion, as the caller says
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        local = Path(huggingface_hub.snapshot_download(reference, local_files_only=True))
    except LocalEntryNotFoundError:
        local = None
    if local is not None and any(file.suffix in (*PICKLES, ".safetensors") for file in local.rglob("*")):
        return local
    return _fetched(reference, "main", [*PATTERNS, *(f"*{ending}" for ending in PICKLES)])


def _fetched(reference: str, revision: str | None, patterns: list[str]) -> Path:
    """Returns the folder of a hub model, of which files of these patterns are fetched.

    Raises:
        ModelError: it cannot be had; the message says what to do.
    """
    import huggingface_hub

    advice = _advice(reference, huggingface_hub.constants.HF_HUB_CACHE)
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise ModelError(f"the model {reference!r} is not on this machine, and HF_HUB_OFFLINE is set: {advice}")
    _check_reachable(reference, huggingface_hub.constants.ENDPOINT, advice)
    log.info("fetching the model %s", reference)
    hub = huggingface_hub.HfApi()
    try:
        # The download begins with this list, and would wait for it without end.
        _within(_LISTING_SECONDS, lambda: list(hub.list_repo_tree(reference, recursive=True, revision=revision)))
        return Path(
            huggingface_hub.snapshot_download(
                reference, revision=revision, allow_patterns=patterns, etag_timeout=_HUB_SECONDS, max_workers=4
            )
        )
    except Exception as error:  # network and hub errors of many libraries
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"the model {reference!r} cannot be fetched ({first}): {advice}") from error


def _advice(reference: str, cache: str) -> str:
    """Returns what to do about a hub model that cannot be fetched."""
    source = COPIES.get(reference, reference)
    known = HUB.get(source)
    folder = source.partition("/")[2]
    command = f"hf download {source} --local-dir {folder}"
    if known and known.revision not in (None, "main"):
        command += f" --revision {known.revision}"
    size = f" (about {known.size_mb:,} MB)" if known and known.size_mb else ""
    pickled = known is not None and known.revision is None
    name = f"run `tamis convert {folder} OUT` and name OUT" if pickled else "name its path"
    return (
        f"where there is a network, run `{command}`{size}, copy the folder {folder} here and {name} as "
        f"the model; or fill this machine's cache at {cache}; {_meanwhile(reference)}"
    )


def _meanwhile(reference: str) -> str:
    """Returns which built-in model could serve instead."""
    job = job_of(reference)
    for name, model in BUILT_IN.items():
        if model.job == job:
            first = "" if model.find() else f", after `{model.remedy}`"
            return f"meanwhile the built-in {name} does the same job{first} ({model.about})"
    return "`tamis list models` shows the built-in models, which need no download"


def _check_reachable(reference: str, endpoint: str, advice: str) -> None:
    """Asks the hub for the model once, with a deadline: a download would try for minutes.

    Raises:
        ModelError: no answer, none of a hub's, or no such model.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    def ask() -> int | str:
        try:
            # `_within` is there first: this deadline only ends the thread that it leaves behind.
            HfApi(endpoint=endpoint).model_info(reference, timeout=2 * _HUB_SECONDS)
        except HfHubHTTPError as error:
            return error.response.status_code
        except (ValueError, TypeError, KeyError):  # a login page, say, or something else's JSON
            return "answers, but not as a hub does"
        except Exception as error:  # of sockets, names, certificates, proxies, half an answer
            return f"cannot be reached ({' '.join(str(error).split()) or type(error).__name__})"
        return 200

    try:
        answer = _within(_HUB_SECONDS, ask)
    except TimeoutError as error:
        answer = str(error)
    if answer in (401, 403, 404):
        what = "check the name, or log in with `hf auth login`"
        if reference in COPIES:
            what = f"its owner withdrew it, {COPIES[reference]} is a copy"
        raise ModelError(
            f"{endpoint} has no model {reference!r} that you may read (HTTP {answer}): {what}; {_meanwhile(reference)}"
        )
    if answer != 200:
        what = f"answers with HTTP status {answer}" if isinstance(answer, int) else answer
        raise ModelError(f"the model {reference!r} is not on this machine, and {endpoint} {what}: {advice}")


def _within(seconds: float, ask: Callable[[], T]) -> T:
    """Returns what a function returns, or raises what it raises, but not later than that.

    A socket's timeout bounds neither the look-up of a name, nor several addresses tried in turn, nor an answer that
    comes drop by drop. So the function runs in a thread, which is left to itself when the time is over.

    Raises:
        TimeoutError: it takes longer.
    """
    import queue
    import threading

    answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=run, daemon=True, name="hub").start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"does not answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return cast(T, answer)
