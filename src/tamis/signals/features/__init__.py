"""Intermediate results that signals share; each is computed once per batch."""
