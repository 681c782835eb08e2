"""Image captioners: images to texts."""
