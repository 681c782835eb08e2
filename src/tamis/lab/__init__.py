"""The lab: a small drawn world in which the truth about every image-text pair is known.

`make_pool` writes pools for demos, tests and measurements. It samples scenes (`sample_scene`), draws (`render`) and
captions them (`describe`). `tamis.lab.world` has the tables of objects, colours and places.
"""

from tamis.lab.captions import describe
from tamis.lab.drawing import render
from tamis.lab.pool import PoolSummary, make_pool
from tamis.lab.samples import Kind, LabSample, Mix, kind_shares, make_sample
from tamis.lab.world import Scene, sample_scene, zipf_weights

__all__ = [
    "Kind",
    "LabSample",
    "Mix",
    "PoolSummary",
    "Scene",
    "describe",
    "kind_shares",
    "make_pool",
    "make_sample",
    "render",
    "sample_scene",
    "zipf_weights",
]
