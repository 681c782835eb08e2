"""Doing the work: what is missing (plan), one shard (worker), many shards (local), telling people (progress)."""
