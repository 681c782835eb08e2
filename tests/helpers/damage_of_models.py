"""What can be wrong with the files of a model folder, each as a function of a file's bytes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Corruption = Callable[[bytes], bytes]


def tensors(change: Callable[[dict[str, Any], bytes], bytes]) -> Corruption:
    """Changes the header of a safetensors file (name to dtype, shape, data_offsets) and what follows it."""

    def made(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        data = change(header, content[8 + length :])
        raw = json.dumps(header).encode()
        return len(raw).to_bytes(8, "little") + raw + data

    return made


def last_of(header: dict[str, Any]) -> str:
    return max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])


def without_last(header: dict[str, Any], data: bytes) -> bytes:
    return data[: header.pop(last_of(header))["data_offsets"][0]]


def grown(header: dict[str, Any], data: bytes) -> bytes:
    """Makes one tensor a row longer."""
    last = header[last_of(header)]
    row = (last["data_offsets"][1] - last["data_offsets"][0]) // last["shape"][0]
    last["shape"][0] += 1
    last["data_offsets"][1] += row
    return data + bytes(row)


def of_last(**settings: Any) -> Corruption:
    def change(header: dict[str, Any], data: bytes) -> bytes:
        header[last_of(header)].update(settings)
        return data

    return tensors(change)


#: Files that are no safetensors files any more.
BROKEN_WEIGHTS: Mapping[str, Corruption] = {
    "empty": lambda content: b"",
    "a length alone": lambda content: content[:8],
    "half a header": lambda content: content[:200],
    "half of the data": lambda content: content[: len(content) // 2],
    "all but a byte": lambda content: content[:-1],
    "a byte more": lambda content: content + b"\0",
    "a header of 2^63 bytes": lambda content: (1 << 63).to_bytes(8, "little") + content[8:],
    "an unknown type": of_last(dtype="F99"),
    "a shape of 2^80": of_last(shape=[1 << 80]),
    "zeros": lambda content: bytes(len(content)),
}

#: Whole files that do not fit the configuration.
OTHER_WEIGHTS: Mapping[str, Corruption] = {"a tensor less": tensors(without_last), "a tensor too long": tensors(grown)}

#: Of every JSON file.
JSON: Mapping[str, Corruption] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "no text": lambda content: b"\xff\xfe\x00\x9f" * 20,
    "a list": lambda content: b"[]",
    "deep": lambda content: b"[" * 200_000,
}


def setting(value: Any, *names: str) -> Corruption:
    """Changes settings, wherever they are in a JSON file."""

    def changed(found: Any) -> Any:
        if isinstance(found, dict):
            return {key: value if key in names else changed(inner) for key, inner in found.items()}
        return [changed(inner) for inner in found] if isinstance(found, list) else found

    return lambda content: json.dumps(changed(json.loads(content))).encode()


def added(**more: Any) -> Corruption:
    return lambda content: json.dumps(json.loads(content) | more).encode()


def in_vocabulary(change: Callable[[int], int]) -> Corruption:
    """Changes the numbers of all tokens in tokenizer.json."""

    def made(content: bytes) -> bytes:
        found = json.loads(content)
        found["model"].update(vocab={word: change(number) for word, number in found["model"]["vocab"].items()})
        return json.dumps(found).encode()

    return made


_WIDTHS = ("hidden_size", "n_embd", "d_model", "block_out_channels", "ffn_dim")
_LAYERS = ("num_hidden_layers", "n_layer", "layers_per_block", "num_layers")

#: Of config.json.
CONFIG: Mapping[str, Corruption] = JSON | {
    **{f"width {value}": setting(value, *_WIDTHS) for value in ("x", None, -1, 33, 10**9, [])},
    **{f"layers {value}": setting(value, *_LAYERS) for value in ("x", -1, 0, 3, 10**9)},
    **{f"words {value}": setting(value, "vocab_size") for value in ("x", 3, 10**9)},
    **{f"positions {value}": setting(value, "max_position_embeddings", "n_positions") for value in (1, 10**9)},
    **{f"image {value}": setting(value, "image_size") for value in ("x", 64, 10**9)},
    **{f"heads {value}": setting(value, "num_attention_heads", "n_head") for value in ("x", -4, 5)},
    **{f"kind {value}": added(model_type=value) for value in (None, [], "theirs", "bert")},
    "a text config that is a list": added(text_config=[]),
    "10^8 labels": added(num_labels=10**8),
}

#: What can be wrong with each file, by its suffix or name.
CORRUPTIONS: Mapping[str, Mapping[str, Corruption]] = {
    ".safetensors": BROKEN_WEIGHTS | OTHER_WEIGHTS,
    "config.json": CONFIG,
    "preprocessor_config.json": JSON
    | {
        **{f"size {value}": added(size=value) for value in ("x", 0, -1, 10**9, {"height": "x", "width": 1}, {})},
        **{f"mean {value}": added(image_mean=value) for value in ("abc", [1], 5)},
        **{f"std {value}": added(image_std=value) for value in ([0, 0, 0], [None] * 3)},
        "resample 99": added(resample=99),
        "scale 0": added(rescale_factor=0),
    },
    "processor_config.json": JSON
    | {
        **{f"patches {value}": added(patch_size=value) for value in ("x", 0, -1, 3, 10**9, None)},
        **{f"image tokens {value}": added(num_additional_image_tokens=value) for value in ("x", -(10**9), 10**9)},
        "strategy x": added(vision_feature_select_strategy="x"),
        "a template that is a number": added(chat_template=5),
        "an audio tokenizer": added(audio_tokenizer={"audio_tokenizer_class": "AutoModel", "name": "theirs"}),
    },
    ".jinja": {
        "empty": lambda content: b"",
        "half": lambda content: content[: len(content) // 2],
        "no text": lambda content: b"\xff\xfe\x00\x9f" * 20,
        "no image": lambda content: b"{{ messages[0].role }}",
        "two images": lambda content: content + content,
        "no end": lambda content: b"{% for n in range(10 ** 12) %}x{% endfor %}",
        "code": lambda content: b"{{ ().__class__.__base__.__subclasses__() }}",
        "an error": lambda content: b"{{ raise_exception('theirs') }}",
    },
    "tokenizer.json": JSON
    | {
        "an empty vocabulary": added(model={}),
        "numbers beyond the model's": in_vocabulary(lambda number: number + 10**6),
        "negative numbers": in_vocabulary(lambda number: -number - 1),
    },
    "tokenizer_config.json": JSON
    | {
        **{f"longest {value}": added(model_max_length=value) for value in ("x", [], -1, 0)},
        **{f"class {value}": added(tokenizer_class=value) for value in ("Theirs", "AutoModel")},
        "no padding": added(pad_token=None),
    },
    **dict.fromkeys(("generation_config.json", "model_index.json", "modules.json", "scheduler_config.json"), JSON),
}


def corruptions_of(file: Path) -> Mapping[str, Corruption]:
    """Returns what can be wrong with a file, by name; {} for one that is not known."""
    return CORRUPTIONS.get(file.name) or CORRUPTIONS.get(file.suffix, {})
