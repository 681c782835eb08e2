"""What can be wrong with the files of a model folder, each as a function that makes it so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Corruption = Callable[[bytes], bytes]


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the header of a safetensors file and what follows it."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header: Any, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def first_tensor(change: Callable[[dict[str, Any]], None]) -> Corruption:
    """Changes what the header says of the first tensor of two dimensions or more."""

    def made(content: bytes) -> bytes:
        header, data = header_of(content)
        names = [name for name in header if name != "__metadata__" and len(header[name]["shape"]) > 1]
        change(header[names[0]])
        return with_header(header, data)

    return made


def without_a_tensor(content: bytes, *, last: bool) -> bytes:
    """Leaves one tensor out, and is whole otherwise."""
    header, data = header_of(content)
    names = sorted((one for one in header if one != "__metadata__"), key=lambda one: header[one]["data_offsets"])
    gone = names[-1 if last else len(names) // 2]
    start, stop = header.pop(gone)["data_offsets"]
    for one in names:
        if one != gone and header[one]["data_offsets"][0] >= stop:
            header[one]["data_offsets"] = [place - (stop - start) for place in header[one]["data_offsets"]]
    return with_header(header, data[:start] + data[stop:])


def grown(content: bytes) -> bytes:
    """Makes one tensor a row longer, and is whole otherwise."""
    header, data = header_of(content)
    names = sorted((one for one in header if one != "__metadata__"), key=lambda one: header[one]["data_offsets"])
    last = header[names[-1]]
    size = (last["data_offsets"][1] - last["data_offsets"][0]) // last["shape"][0]
    last["shape"][0] += 1
    last["data_offsets"][1] += size
    return with_header(header, data + bytes(size))


def in_header(content: bytes, part: float) -> bytes:
    return content[: 8 + int(part * int.from_bytes(content[:8], "little"))]


#: Of every safetensors file.
WEIGHTS: Mapping[str, Corruption] = {
    "empty": lambda content: b"",
    "half a length": lambda content: content[:4],
    "a length alone": lambda content: content[:8],
    "half a header": partial(in_header, part=0.5),
    "a header alone": partial(in_header, part=1),
    "half of the data": lambda content: content[: len(content) // 2],
    "all but a byte": lambda content: content[:-1],
    "a byte more": lambda content: content + b"\0",
    "a header of 2^63 bytes": lambda content: (1 << 63).to_bytes(8, "little") + content[8:],
    "a header of 100 MB": lambda content: (100_000_001).to_bytes(8, "little") + content[8:],
    "a header that is no JSON": lambda content: with_header(b"{half", b""),
    "a header that is a list": lambda content: with_header([], b""),
    "a deep header": lambda content: with_header(b"[" * 200_000, b""),
    "an unknown type": first_tensor(lambda tensor: tensor.update(dtype="F99")),
    "a type that is a list": first_tensor(lambda tensor: tensor.update(dtype=["F32"])),
    "another type": first_tensor(lambda tensor: tensor.update(dtype="F64")),
    "a negative shape": first_tensor(lambda tensor: tensor.update(shape=[-one for one in tensor["shape"]])),
    "a shape of 2^80": first_tensor(lambda tensor: tensor.update(shape=[1 << 80])),
    "places that overlap": first_tensor(
        lambda tensor: tensor.update(data_offsets=[one + 4 for one in tensor["data_offsets"]])
    ),
    "no places": first_tensor(lambda tensor: tensor.pop("data_offsets")),
    "a tensor less": partial(without_a_tensor, last=False),
    "the last tensor less": partial(without_a_tensor, last=True),
    "a tensor of another shape": first_tensor(lambda tensor: tensor.update(shape=[*tensor["shape"][::-1], 1])),
    "a tensor too long": grown,
    "zeros": lambda content: bytes(len(content)),
}

#: Of every JSON file.
JSON: Mapping[str, Corruption] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "no text": lambda content: b"\xff\xfe\x00\x9f" * 20,
    "a list": lambda content: b"[]",
    "null": lambda content: b"null",
    "a number": lambda content: b"5",
    "a long number": lambda content: b'{"a": ' + b"9" * 10_000 + b"}",
    "deep": lambda content: b"[" * 200_000,
    "no end of it": lambda content: b'{"a": "' + b"x" * 1000,
}


def setting(value: Any, *names: str) -> Corruption:
    """Changes settings, wherever in a JSON file they stand."""

    def changed(found: Any) -> Any:
        if isinstance(found, dict):
            return {key: value if key in names else changed(inner) for key, inner in found.items()}
        return [changed(inner) for inner in found] if isinstance(found, list) else found

    return lambda content: json.dumps(changed(json.loads(content))).encode()


def added(**more: Any) -> Corruption:
    return lambda content: json.dumps(json.loads(content) | more).encode()


_WIDTHS = ("hidden_size", "n_embd", "d_model", "block_out_channels", "ffn_dim")
_LAYERS = ("num_hidden_layers", "n_layer", "layers_per_block", "num_layers")

#: Of config.json.
CONFIG: Mapping[str, Corruption] = JSON | {
    **{f"width {value}": setting(value, *_WIDTHS) for value in ("x", None, -1, 0, 33, 10**9, 1e400, [], {})},
    **{f"layers {value}": setting(value, *_LAYERS) for value in ("x", None, -1, 0, 1, 3, 100, 10**6, 10**9)},
    **{f"words {value}": setting(value, "vocab_size") for value in ("x", -1, 0, 3, 10**9)},
    **{f"positions {value}": setting(value, "max_position_embeddings", "n_positions") for value in ("x", 0, 1, 10**9)},
    **{f"image {value}": setting(value, "image_size", "sample_size") for value in ("x", 0, 64, 10**9)},
    **{f"heads {value}": setting(value, "num_attention_heads", "n_head") for value in ("x", -4, 0, 5, 10**9)},
    **{f"labels {value}": added(num_labels=value) for value in ("x", 10**8)},
    **{f"kind {value}": added(model_type=value) for value in (None, [], 5, "theirs", "bert", "../../x")},
    **{f"text config {value}": added(text_config=value) for value in ([], "x", 5)},
    "architectures": added(architectures="x"),
    "type": added(torch_dtype="float99", dtype="float99"),
    "quantised": added(quantization_config={"quant_method": "theirs"}),
}

#: Of preprocessor_config.json.
PICTURES: Mapping[str, Corruption] = JSON | {
    **{f"size {value}": added(size=value) for value in ("x", [], 0, -1, 10**9, {"height": "x", "width": 1}, {})},
    **{f"crop {value}": added(crop_size=value, do_center_crop=True) for value in ("x", {"height": 10**9, "width": 1})},
    **{f"mean {value}": added(image_mean=value) for value in ("abc", [1], ["a", "b", "c"], 5)},
    **{f"std {value}": added(image_std=value) for value in ([0, 0, 0], "abc", [None] * 3)},
    **{f"resample {value}": added(resample=value) for value in (99, "x", None)},
    **{f"scale {value}": added(rescale_factor=value) for value in (0, "x")},
    "kind": added(image_processor_type=["x"]),
}


def token(change: Callable[[Any], Any]) -> Corruption:
    def made(content: bytes) -> bytes:
        found = json.loads(content)
        change(found)
        return json.dumps(found).encode()

    return made


#: Of tokenizer.json.
WORDS: Mapping[str, Corruption] = JSON | {
    "no model": token(lambda found: found.pop("model")),
    "an unknown model": token(lambda found: found["model"].update(type="Theirs")),
    "a vocabulary that is a list": token(lambda found: found["model"].update(vocab=["a", "b"])),
    "numbers beyond the model's": token(
        lambda found: found["model"].update(vocab={word: n + 10**6 for word, n in found["model"]["vocab"].items()})
    ),
    "negative numbers": token(
        lambda found: found["model"].update(vocab={word: -n - 1 for word, n in found["model"]["vocab"].items()})
    ),
    "an empty vocabulary": token(lambda found: found["model"].update(vocab={})),
    "odd added tokens": token(lambda found: found.update(added_tokens=[{"id": "x"}])),
    "an odd post-processor": token(lambda found: found.update(post_processor={"type": "Theirs"})),
}

#: Of tokenizer_config.json.
TOKENS: Mapping[str, Corruption] = JSON | {
    **{f"longest {value}": added(model_max_length=value) for value in ("x", [], -1, 0, None)},
    **{f"padding {value}": added(pad_token=value) for value in (5, [], {"content": 5}, "<nowhere>", None)},
    "odd added tokens": added(added_tokens_decoder={"x": "y"}),
    "added tokens that are a list": added(added_tokens_decoder=[1]),
    "odd special tokens": added(extra_special_tokens=5),
    "an unknown class": added(tokenizer_class="Theirs"),
    "a class that is a list": added(tokenizer_class=["x"]),
    "a class of something else": added(tokenizer_class="AutoModel"),
    "an odd auto_map": added(auto_map=5),
    "a file of elsewhere": added(tokenizer_file="/etc/passwd", vocab_file="/etc/passwd"),
    "odd versions": added(fast_tokenizer_files=5),
}

#: What can be wrong with each file, by the end of its path.
CORRUPTIONS: Mapping[str, Mapping[str, Corruption]] = {
    ".safetensors": WEIGHTS,
    "/config.json": CONFIG,
    "/preprocessor_config.json": PICTURES,
    "/tokenizer.json": WORDS,
    "/tokenizer_config.json": TOKENS,
    "/generation_config.json": JSON,
    "/model_index.json": JSON,
    "/modules.json": JSON,
    "/scheduler_config.json": JSON,
}


def corruptions_of(file: Path) -> Mapping[str, Corruption]:
    """Returns what can be wrong with a file, by name; {} for one that is not known."""
    return next((found for ending, found in CORRUPTIONS.items() if f"/{file.name}".endswith(ending)), {})
