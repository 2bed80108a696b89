"""Bit-exact kernels for weight sync: find what changed, apply it elsewhere, prove that both sides agree.

Every operation is one package with four faces: the dispatcher (`__init__`), the reference twin that specifies it
(`reference`), a numba twin for host tensors (`cpu`) and Triton kernels for CUDA and HIP tensors (`gpu`); `placement`
says which of these runs. All of them work on integer bits, never on floats, so NaN payloads and signed zeros survive.
numba and triton are imported when an operation first needs them, not with this package.
"""

from .bits import BITS_OF_WIDTH, as_bits, as_unsigned_numpy
from .box import Box, normalise
from .cast_extract import HALVES, CastChanges, cast_extract
from .extract import extract_changes
from .fingerprint import change_fingerprint, fingerprint
from .gather import gather, put
from .packed import MOVED_OUT, PackedChanges, PackedUnits
from .placement import on_gpu
from .restrict import restrict
from .scatter import Applied, AppliedPacked, Places, UnitsApplied, scatter_changes, scatter_packed, undo

__all__ = [
    "BITS_OF_WIDTH",
    "HALVES",
    "MOVED_OUT",
    "Applied",
    "AppliedPacked",
    "Box",
    "CastChanges",
    "PackedChanges",
    "PackedUnits",
    "Places",
    "UnitsApplied",
    "as_bits",
    "as_unsigned_numpy",
    "cast_extract",
    "change_fingerprint",
    "extract_changes",
    "fingerprint",
    "gather",
    "normalise",
    "on_gpu",
    "put",
    "restrict",
    "scatter_changes",
    "scatter_packed",
    "undo",
]
