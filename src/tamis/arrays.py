"""Names for kinds of arrays. Shapes stand where arrays are taken and given, in docstrings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]

#: Row numbers of a table.
Rows = NDArray[np.int64]

#: Which rows, as bool.
Mask = NDArray[np.bool_]

#: Halves of uids, and other bits.
U64 = NDArray[np.uint64]

#: (height, width, 3) RGB.
Pixels = NDArray[np.uint8]
