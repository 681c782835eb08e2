"""Lets these tests import the modules of this folder."""
