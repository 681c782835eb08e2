"""Detection and recognition of written text in images."""
