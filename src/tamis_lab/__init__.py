"""The lab: a small drawn world in which the truth about every image-text pair is known.

`pool.make_pool` writes pools for demos, tests and measurements, and `tasks.make_tasks` zero-shot tasks. They sample
scenes (`world`, with its tables of objects, colours and places), draw them (`drawing`) and caption them (`captions`).
"""

#: Settings of a bench of drawn pairs: the lab's small models instead of those for photographs.
MODEL_SETTINGS = (
    *(f"signals.{signal}.model=lab/clip" for signal in ("clip", "tmars", "generated_clip")),
    *(f"signals.{signal}.captioner=lab/captioner" for signal in ("sieve", "generated_clip")),
)
