"""A server on this machine that speaks the OpenAI chat protocol, and misbehaves as real ones do."""

import base64
import hashlib
import io
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from faulty_server import Answer, FaultyServer, Request
from PIL import Image

from tamis.core.arrays import Pixels

WORDS = ("a", "red", "dog", "cat", "on", "the", "boat", "house", "tree", "near", "two", "small")

#: What the model says -> the tokens with their probabilities: the first is the one that it says.
Says = Callable[[Mapping[str, Any]], "str | Sequence[Mapping[str, float]]"]


def prompt_of(body: Mapping[str, Any]) -> str:
    content: Any = body["messages"][0]["content"]
    text: str = content if isinstance(content, str) else content[1]["text"]
    return text


def file_of(body: Mapping[str, Any]) -> bytes:
    """The image's file."""
    url: str = body["messages"][0]["content"][0]["image_url"]["url"]
    return base64.b64decode(url.partition(";base64,")[2])


def pixels_of(body: Mapping[str, Any]) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(file_of(body))).convert("RGB"))


def caption_of(body: Mapping[str, Any]) -> str:
    """Some words that depend on image, prompt and seed alone."""
    numbers = hashlib.sha256(file_of(body) + f"{prompt_of(body)}{body.get('seed')}".encode()).digest()
    return " ".join(WORDS[number % len(WORDS)] for number in numbers[:5])


class ChatServer(FaultyServer):
    """Serves the model "tiny". `refuses` names files that get a 400; `asked` are the requests but the greeting."""

    def __init__(
        self,
        says: Says = caption_of,
        *,
        models: Sequence[str] = ("tiny",),
        refuses: Callable[[Mapping[str, Any]], bool] = lambda body: False,
        key: str = "",
        logprobs: bool = True,
        **faults: Any,
    ) -> None:
        super().__init__(self._answer, **faults)
        self.says, self.models, self.refuses, self.key, self.logprobs = says, models, refuses, key, logprobs
        self.most = self._now = 0  # requests at once
        self._counting = threading.Lock()

    @property
    def asked(self) -> list[dict[str, Any]]:
        bodies = [json.loads(one.body) for one in self.requests if "/chat/completions" in one.path]
        return [body for body in bodies if prompt_of(body) != "What is this?"]

    def _answer(self, request: Request) -> Answer:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _json({"error": {"message": f"wrong key: {request.headers.get('Authorization')}"}}, 401)
        path = request.path.partition("?")[0]
        if path == "/v1/models":
            return _json({"object": "list", "data": [{"id": name} for name in self.models]})
        if path != "/v1/chat/completions":
            return Answer(404, b"there is nothing")
        body = json.loads(request.body)
        if body["model"] not in self.models:
            return _json({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
        if self.refuses(body):
            return _json({"error": {"message": "this image cannot be processed"}}, 400)
        with self._counting:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return _json(self._choice(self.says(body), body))
        finally:
            with self._counting:
                self._now -= 1

    def _choice(self, said: str | Sequence[Mapping[str, float]], body: Mapping[str, Any]) -> dict[str, Any]:
        steps = [{word: 1.0} for word in said.split()] if isinstance(said, str) else said
        text = said if isinstance(said, str) else "".join(next(iter(step)) for step in steps)
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        if body.get("logprobs") and self.logprobs:
            choice["logprobs"] = {
                "content": [
                    {
                        "token": next(iter(step)),
                        "logprob": 0.0,
                        "top_logprobs": [{"token": token, "logprob": math.log(p)} for token, p in step.items()],
                    }
                    for step in steps
                ]
            }
        return {"choices": [choice]}


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})
