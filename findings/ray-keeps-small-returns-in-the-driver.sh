#!/usr/bin/env bash
# ray 2.60.0, as a shuffle uses it: tasks with num_returns, whose results only other tasks read.
# We expected the driver's own memory to stay flat: results live in the object store, which spills to disk.
# Results below 100 kB are sent to the driver and stay there, up to 10 MB for each task, whoever reads them: 5 tasks of
# 1,200 returns with 60 kB each add 72 MiB to its private memory; the same bytes in 300 returns of 240 kB add nothing.
# It hurts shuffles with many parts: 2,000 such tasks would take 28 GB of the driver. Parts of 100 kB or more do not.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install ray==2.60.0 numpy==2.3.5

RAY_USAGE_STATS_ENABLED=0 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON'
import logging

import numpy as np
import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)


def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private")) / 1024


def growth(returns, size):
    deal = ray.remote(num_returns=returns)(lambda: [np.zeros(size, np.uint8) for _ in range(returns)])
    before = private()
    dealt = [ref for _ in range(5) for ref in deal.remote()]
    ray.wait(dealt, num_returns=len(dealt), fetch_local=False)
    return private() - before


small, large = growth(1200, 60_000), growth(300, 240_000)
print(f"the driver grows by {small:.0f} MiB for 6,000 returns of 60 kB, by {large:.0f} MiB for 1,500 of 240 kB")
assert small > 50
assert large < 10
PYTHON
