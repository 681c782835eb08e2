"""Intermediates that scorers share: one file per kind, each computed once per batch."""
