"""Vision-language models behind a server that speaks the OpenAI chat protocol: vLLM, SGLang, Ollama and others."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError, UnreachedError, at_least_one, brief, first_line, require, unknown_message
from tamis.core.files.remote import RemoteError, keep_secrets, public_url, redact, retry, transient_error, with_secrets
from tamis.core.processes import is_abandoned

_CONNECT = 20.0  # seconds to wait for a connection
_NOTICE = 0.2  # seconds after which an interrupt is noticed
LIKELIEST = 20  # tokens per step whose probabilities are read: the protocol's limit
_WORDS = 300  # characters of a server's answer in a message
_LONGEST = 16 << 20  # bytes of an answer

#: Statuses that concern one request; others, except for the transient ones, concern all.
_REFUSED = (400, 413, 415, 422)
_TRANSIENT = (408, 409, 425, 429)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A vision-language model behind a server that speaks the OpenAI chat protocol (vLLM, SGLang, Ollama).

    Images are sent as JPEGs of quality 95, reduced to `side` if they are larger. Scores depend on the model's name, not
    on the URL: if other weights get the same name, use another run.

    Attributes:
        url: where the server is, such as http://localhost:8000/v1; /v1 may be left out. It is not part of the
            fingerprint, because servers move. Neither are the last three settings.
        model: the model's name on the server.
        prompt: the instruction for a caption.
        temperature: of sampling, at least 0.
        side: pixels of an image's longer side; larger images are reduced.
        requests: number of requests at once, in each worker.
        timeout: seconds without data after which a request is sent again.
        key_from: the environment variable with the API key, such as OPENAI_API_KEY; its name must end like that. "" for
            none. The key is neither stored nor shown.
    """

    execution: ClassVar[tuple[str, ...]] = ("url", "requests", "timeout", "key_from")
    url: str
    model: str
    prompt: str = "Describe this image in one short sentence."
    temperature: float = 1.0
    side: int = 1024
    requests: int = 16
    timeout: float = 300.0
    key_from: str = ""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {brief(public_url(self.url))}")
        object.__setattr__(self, "url", keep_secrets(self.url, lambda url: [url]))
        at_least_one(side=self.side, requests=self.requests)
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be above 0 seconds, got {self.timeout}")
        if self.key_from and not self.key_from.endswith("_API_KEY"):  # recipes of strangers must not send any variable
            raise ValueError(f"key_from must end with _API_KEY, such as OPENAI_API_KEY, got {brief(self.key_from)}")
        if not self.model or not self.prompt.strip():
            raise ValueError("model and prompt must not be empty")


@dataclass(frozen=True)
class Question:
    """One request, about an image or about nothing but its prompt. `sampling`: seed, temperature, top_p."""

    pixels: Pixels | None
    prompt: str
    max_tokens: int
    sampling: Mapping[str, float] = field(default_factory=dict)
    probabilities: bool = False


@dataclass(frozen=True)
class Answer:
    """What a model answered.

    Attributes:
        text: "" if it was refused.
        tokens: each token of the answer with the probabilities of the likeliest ones at its place; None if not known.
        refused: why this request got no answer; "" if it has one.
    """

    text: str = ""
    tokens: Sequence[tuple[str, dict[str, float]]] | None = None
    refused: str = ""


class _RefusedError(RemoteError):
    """A status that another try would get again."""

    status = 0


class _FailedError(RemoteError):
    """The server failed at one request (5xx), or its answer has another form."""


class ChatClient:
    """Asks a server many questions at once. Threads may share it."""

    def __init__(self, server: Server) -> None:
        """Connects to a server; ModelError if a setting of this machine is missing."""
        require("httpx2", extra="server")
        import httpx2

        self.server, self._key = server, ""
        if server.key_from:
            self._key = os.environ.get(server.key_from, "").strip()
            if not self._key:
                raise ModelError(f"{server.url}: the variable {server.key_from} is not set where the workers run")
            if not (self._key.isascii() and self._key.isprintable()):  # the library's error would show it
                raise ModelError(f"the key in {server.key_from} holds characters that no HTTP header can")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = httpx2.Timeout(server.timeout, connect=_CONNECT)
        limits = httpx2.Limits(max_connections=server.requests)
        try:
            self._url = httpx2.URL(with_secrets(server.url))
            self._client = httpx2.Client(headers=headers, timeout=timeout, limits=limits)
        except Exception as error:  # many kinds: a proxy without a port, a missing package or file
            why = redact(first_line(error))
            raise ModelError(f"{server.url} cannot be asked (see also HTTP_PROXY and SSL_CERT_FILE): {why}") from error
        weakref.finalize(self, self._client.close)

    def check(self, *, probabilities: bool = False, image: bool = True) -> None:
        """Raises ModelError unless the server has the model, and it takes an `image` (and gives `probabilities`)."""
        try:
            listed = self._send("GET", "/models")
            names = [str(one.get("id")) for one in listed.get("data") or [] if isinstance(one, dict)]
        except RemoteError as error:
            refused = isinstance(error, _RefusedError) and error.status not in (401, 403)
            if not refused and not isinstance(error, _FailedError):
                raise self._useless(error) from None
            names = []  # some servers have no list
        if names and self.server.model not in {*names, *(name.removesuffix(":latest") for name in names)}:  # Ollama's
            raise ModelError(f"{self.server.url} has {unknown_message('model', self.server.model, names)}")
        answer = self._probe(probabilities, image=image)
        if probabilities and answer.tokens is None:
            raise ModelError(f"{self.server.url} gives no logprobs for {self.server.model}: set number: written")

    def _probe(self, probabilities: bool = False, *, image: bool) -> Answer:
        """Asks about a grey image, or about none; ModelError if there is no answer."""
        grey = np.full((64, 64, 3), 128, np.uint8) if image else None
        try:
            return self._answer(Question(grey, "What is this?", 4, probabilities=probabilities))
        except RemoteError as error:
            raise self._useless(error) from None

    def _useless(self, error: Exception) -> ModelError:
        advice = "is it running, and is the URL right?"
        if isinstance(error, _RefusedError):
            advice = "does the model take images, and does the key fit?"
        return ModelError(f"{self.server.url} does not answer for the model {self.server.model!r} ({error}): {advice}")

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Returns the answers in the order of the questions.

        Raises ModelError if the server is gone, UnreachedError if it works but did not answer one of the questions.
        """
        waiting, done, stopped = deque(enumerate(questions)), SimpleQueue[tuple[int, Answer | Exception]](), Event()

        def work() -> None:
            with suppress(IndexError):  # nothing waits
                while not stopped.is_set():
                    place, question = waiting.popleft()
                    try:
                        done.put((place, self._asked(question)))
                    except Exception as error:
                        done.put((place, error))

        for _ in range(min(self.server.requests, len(questions))):  # daemons: no exit waits for an answer
            Thread(target=work, name="tamis-ask", daemon=True).start()
        answers: dict[int, Answer] = {}
        try:
            while len(answers) < len(questions) and not is_abandoned():
                with suppress(Empty):
                    place, answer = done.get(timeout=_NOTICE)
                    if isinstance(answer, Exception):
                        raise answer
                    answers[place] = answer
        finally:
            stopped.set()
        return [answers.get(place, Answer()) for place in range(len(questions))]

    def _asked(self, question: Question) -> Answer:
        try:
            return self._answer(question)
        except _RefusedError as error:
            if error.status in _REFUSED:
                return Answer(refused=f"the server refused it ({error})")
            raise self._useless(error) from None
        except RemoteError as error:
            self._probe(image=question.pixels is not None)  # is it this pair, or the server?
            if isinstance(error, _FailedError):
                return Answer(refused=f"the server failed at it ({error})")
            raise UnreachedError(f"{self.server.url} did not answer a request ({error})") from None

    def _answer(self, question: Question) -> Answer:
        content: Any = question.prompt
        if question.pixels is not None:
            url = data_url(question.pixels, self.server.side)
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": content}]
        body: dict[str, Any] = {
            "model": self.server.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": question.max_tokens,
            **question.sampling,
        }
        if question.probabilities:
            body |= {"logprobs": True, "top_logprobs": LIKELIEST}
        answer: Answer = self._send("POST", "/chat/completions", body, _answer_in)
        return answer

    def _send(self, method: str, path: str, body: Any = None, read: Any = dict) -> Any:
        """Returns what `read` makes of a JSON answer. Raises _RefusedError, or RemoteError after the last try."""
        root = self._url.path.rstrip("/") or "/v1"
        url = self._url.copy_with(path=root + path)

        def request() -> Any:
            try:
                with self._client.stream(method, url, json=body) as response:
                    content = self._content(response)
            except _FailedError:
                raise
            except Exception as error:  # httpx2 has many kinds
                raise transient_error(redact(f"{type(error).__name__}: {error}")) from None
            status = response.status_code
            if status == 200:
                try:
                    return read(json.loads(content))
                except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                    reason = f"an answer of another form: {_words(content)}"
                    raise transient_error(reason, kind=_FailedError) from None
            said = f"HTTP {status}: {_words(content)}"
            if status in _TRANSIENT or status >= 500:
                after = response.headers.get("Retry-After", "")
                raise transient_error(said, after, _FailedError if status >= 500 else RemoteError)
            refused = _RefusedError(said)
            refused.status = status
            raise refused

        return retry(str(url), request)

    def _content(self, response: Any) -> bytes:
        """Returns an answer without our key; _FailedError if it is too large, or comes too slowly."""
        content, latest = bytearray(), time.monotonic() + self.server.timeout
        for part in response.iter_bytes():
            content += part
            if len(content) > _LONGEST:
                raise transient_error(f"an answer of more than {_LONGEST >> 20} MiB", kind=_FailedError)
            if time.monotonic() > latest:
                raise transient_error(
                    f"an answer that takes more than {self.server.timeout:g} seconds", kind=_FailedError
                )
        return bytes(content).replace(self._key.encode(), b"***") if self._key else bytes(content)


def _words(content: bytes) -> str:
    """Returns what a server says of an error."""
    text = content[: 10 * _WORDS].decode("utf-8", "replace")  # much text takes long to redact
    return redact(" ".join(text.split()))[:_WORDS]


def _answer_in(data: Any) -> Answer:
    choice = data["choices"][0]
    text = (choice["message"]["content"] or "").encode("utf-8", "replace").decode().strip()
    steps = (choice.get("logprobs") or {}).get("content")
    return Answer(text, [_token_in(step) for step in steps] if steps else None)


def _token_in(step: Any) -> tuple[str, dict[str, float]]:
    likeliest: dict[str, float] = {}
    for one in step["top_logprobs"]:
        if not one["logprob"] < 0.01:  # NaN too; rounding can make it a little more than 0
            raise ValueError(one)
        likeliest[one["token"]] = likeliest.get(one["token"], 0.0) + math.exp(one["logprob"])
    if not all(isinstance(token, str) for token in (step["token"], *likeliest)):
        raise TypeError(step)
    return step["token"], likeliest


def data_url(pixels: Pixels, side: int) -> str:
    """Returns an image as the data URL of a JPEG, its longer side at most `side` pixels."""
    image, data = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    image.save(data, "JPEG", quality=95, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"
