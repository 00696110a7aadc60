"""Types of numpy arrays. `numpy.typing` has such too, but importing it takes longer than reading a cached trace."""

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Ints32 = np.ndarray[Any, np.dtype[np.int32]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Array = np.ndarray[Any, np.dtype[Any]]
