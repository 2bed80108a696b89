"""Files of a chain on any file system that fsspec knows: a directory, S3, GCS, HDFS."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import msgspec

from slipstream.core.weights.chain.errors import ChainError
from slipstream.core.weights.chain.manifest import FORMAT, ChainTable, Head, StepHeader
from slipstream.core.weights.wire.frame import HEADER_BYTES, frame_size

HEAD = "HEAD"
_MAGIC = b"SLPC"
_T = TypeVar("_T")


class ChainStore:
    """One chain. Whatever is written appears under its name as a whole or not at all."""

    def __init__(self, url: str) -> None:
        """Point to a chain.

        Args:
            url: of a folder, as fsspec takes it: a path, or `s3://bucket/run7` where s3fs is installed.
        """
        import fsspec

        self.url = url
        self._fs: Any
        self._fs, root = fsspec.core.url_to_fs(url)
        self._root = str(root).rstrip("/")
        self._local = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))

    def head(self) -> Head | None:
        """What the chain offers; None before its first version.

        Raises:
            ChainError: it is not a chain of this format.
        """
        try:
            data = self._fs.cat_file(self._path(HEAD))
        except FileNotFoundError:
            return None
        head = self._decoded(data, Head, HEAD)
        if head.format != FORMAT:
            raise ChainError(f"{self.url} is a chain of format {head.format}, this version reads {FORMAT}")
        if fault := head.fault():
            raise ChainError(f"the head of {self.url} is damaged: {fault}")
        return head

    def write_head(self, head: Head) -> None:
        """Publish."""
        self._put(HEAD, [msgspec.msgpack.encode(head)])

    def table(self, name: str) -> ChainTable:
        """The table that a head names.

        Raises:
            ChainError: it is not there, or not the table of that name.
        """
        table = self._decoded(self._read(name), ChainTable, name)
        if fault := table.fault() or ("" if table.name == name else "its contents have another digest"):
            raise ChainError(f"{name} of {self.url} is damaged: {fault}")
        return table

    def write_table(self, table: ChainTable) -> None:
        """Put a table in place."""
        self._put(table.name, [msgspec.msgpack.encode(table)])

    def write_step(self, name: str, header: StepHeader, frames: Iterable[bytes]) -> int:
        """Put a step in place, frame by frame; return its size in bytes."""
        head = msgspec.msgpack.encode(header)
        return self._put(
            name, (part for parts in ([_MAGIC, len(head).to_bytes(4, "little"), head], frames) for part in parts)
        )

    @contextmanager
    def step(self, name: str) -> Iterator[tuple[StepHeader, Iterator[bytes]]]:
        """A step's header and frames, read as they are asked for.

        Raises:
            ChainError: the file is not there or not a step.
        """
        try:
            file, end = self._fs.open(self._path(name), "rb"), int(self._fs.size(self._path(name)))
        except FileNotFoundError:
            raise ChainError(f"{self.url} has no {name} any more: the reader was too far behind; try again") from None
        with file:
            start = file.read(8)
            size = int.from_bytes(start[4:], "little")
            if start[:4] != _MAGIC or size > end:  # nothing is allocated for what a file cannot hold
                raise ChainError(f"{name} of {self.url} is no step of a chain")
            header = self._decoded(file.read(size), StepHeader, name)
            yield header, _frames(file, end, header.frames, name)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files that no head names any more; one that is gone already is no error."""
        for name in names:
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                continue

    def _read(self, name: str) -> bytes:
        try:
            data: bytes = self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            raise ChainError(f"{self.url} has no {name}: the chain is incomplete") from None
        return data

    def _put(self, name: str, parts: Iterable[bytes]) -> int:
        # Object stores show a file once it is closed; a directory shows it at once, so it gets its name at the end.
        path = self._path(name)
        target = f"{path}.{uuid.uuid4().hex}.part" if self._local else path
        if self._local:
            self._fs.makedirs(self._root, exist_ok=True)
        size = 0
        try:
            with self._fs.open(target, "wb") as file:
                for part in parts:
                    file.write(part)
                    size += len(part)
            if self._local:
                os.replace(target, path)
        except BaseException:
            if self._local and os.path.exists(target):
                os.unlink(target)
            raise
        return size

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _decoded(self, data: bytes, kind: type[_T], name: str) -> _T:
        try:
            return msgspec.msgpack.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise ChainError(f"{name} of {self.url} is damaged or of another version: {error}") from error


def _frames(file: IO[bytes], end: int, count: int, name: str) -> Iterator[bytes]:
    for index in range(count):
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise ChainError(f"{name} ends before frame {index} of {count}")
        size = frame_size(header) - HEADER_BYTES
        if size > end - file.tell():
            raise ChainError(f"{name} ends inside frame {index} of {count}")
        body = file.read(size)
        yield header + body
