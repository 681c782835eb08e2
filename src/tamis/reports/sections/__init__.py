"""The sections of the report. To add one, see `SECTIONS` in page.py."""
