"""Written text in images: where it stands and what it says."""
