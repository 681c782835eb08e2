"""Recipes: what they say, their steps, derived signals, and those that are shipped. Nothing here runs a model."""
