"""The built-in models: small real architectures, trained on the lab's world, so that everything runs offline."""
