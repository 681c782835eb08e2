"""The page's own files."""
