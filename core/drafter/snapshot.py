"""History in a file: survives a restart, and carries one engine's history to another."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import Learned
from slipstream.core.drafter.errors import HistoryFileError
from slipstream.core.drafter.history import GroupId, History
from slipstream.core.drafter.vote import new_learned

FORMAT: Final = 1
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class SavedHistory:
    """What a file holds."""

    conversations: list[tuple[GroupId, Ints, Ints, NDArray[np.bool_], int]]
    """As `History.add` takes them, oldest first."""
    version: int
    learned: Learned


def digest(tokens: Ints) -> str:
    """A name for a run of tokens."""
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).hexdigest()


def save(path: Path, history: History, learned: Learned) -> None:
    """Write a history; running requests are left out."""
    conversations = list(history.conversations())
    header = {
        "format": FORMAT,
        "version": history.version,
        "groups": [each[0] for each in conversations],
        "prompts": [each[1].size for each in conversations],
        "rests": [each[2].size for each in conversations],
        "versions": [each[4] for each in conversations],
    }
    arrays: dict[str, Any] = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "prompts": _joined([each[1] for each in conversations], np.int32),
        "rests": _joined([each[2] for each in conversations], np.int32),
        "everywhere": np.packbits(_joined([each[3] for each in conversations], np.bool_)),
        **learned._asdict(),
    }
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read(path: Path) -> SavedHistory:
    """Read a file and check it whole.

    :raises HistoryFileError: when it cannot be read or does not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
            rests, prompts = _split(file["rests"], header["rests"]), _split(file["prompts"], header["prompts"])
            flags = np.unpackbits(file["everywhere"], count=sum(header["rests"])).astype(np.bool_)
            everywhere = _split(flags, header["rests"])
            fresh = new_learned()
            learned = Learned(*(file[name] for name in Learned._fields))
            for name, expected, found in zip(Learned._fields, fresh, learned, strict=True):
                if expected.shape != found.shape or not np.isfinite(found).all():
                    raise ValueError(f"{name} has shape {found.shape}, expected finite numbers of {expected.shape}")
            columns = header["groups"], prompts, rests, everywhere, header["versions"]
            return SavedHistory(list(zip(*columns, strict=True)), int(header["version"]), learned)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise HistoryFileError(
            f"{path}: expected a history that slipstream saved, got {type(error).__name__}: {error}; "
            f"remove the file to start without history"
        ) from error


def merge(saved: SavedHistory, history: History) -> int:
    """Add the conversations that are not known yet, oldest first; returns how many."""
    known = {_identity(*each) for each in history.conversations()}
    added = 0
    history.version = max(history.version, saved.version)
    for each in saved.conversations:
        identity = _identity(*each)
        if identity not in known:
            known.add(identity)
            added += history.add(*each)
    return added


def _identity(group: GroupId, prompt: Ints, rest: Ints, everywhere: NDArray[np.bool_], version: int) -> tuple[Any, ...]:
    return group, digest(prompt), digest(rest)


def _joined(arrays: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays])


def _split(array: NDArray[Any], sizes: list[int]) -> list[NDArray[Any]]:
    if array.ndim != 1 or sum(sizes) != array.size or min(sizes, default=0) < 0:
        raise ValueError(f"an array of {array.size} elements where {sum(sizes)} were announced")
    return np.split(array, np.cumsum(sizes)[:-1]) if sizes else []
