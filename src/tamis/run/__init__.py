"""Filling a run: `fill` prepares it, `plan` lists what is missing, engines (`local`, `ranks`, `ray`) hand out shards.

`shard` does one shard, `device_process` runs networks for many workers, `failures` and `progress` report.
"""
