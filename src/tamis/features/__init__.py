"""Intermediate results that signals share: one file per kind, each computed once per batch."""
