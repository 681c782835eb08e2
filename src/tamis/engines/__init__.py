"""Filling a run: `fill` prepares it, `plan` lists what is missing, an `engine` (`local` or `ray`) hands out shards.

`shard` does one shard, `device_process` runs networks for many workers, `progress` reports, `named` names engines.
"""
