"""Doing the work: what is missing (plan), one shard (shard), who does which (engines), telling people (progress)."""
