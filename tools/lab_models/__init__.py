"""The built-in models: small real architectures, trained on the lab's world, so that everything runs offline.

With its final loss alone a small vision transformer does not learn shapes and letters within an hour on two cores. The
lab knows what it drew where, so each tower first learns which object, colour, word and letter is under each patch.
"""
