"""Values in Protobuf as columns: protoc reads the schemas, ptars makes Arrow of messages, Google's own judges the rest.

Called by `registry.py`. A message is compiled where the schema is first met, on the driver; tasks have its descriptors.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from kbroker.pipeline.shapes import Bodies, normal, spread

MAIN = "schema.proto"


def compiled(text: str, references: Mapping[str, str]) -> bytes:
    """A schema's file descriptors, those that it refers to first. references: their texts, by the names that the
    schema has for them. Raises ValueError."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {**references, MAIN: text}.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"the schema refers to {name}, which is no name of a file")
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(content)
        known = str(files("grpc_tools") / "_proto")
        words = ["-I.", f"-I{known}", "--include_imports", "--descriptor_set_out=out", MAIN]
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *words], cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if ".proto" in line] or ["protoc says no more"]
            raise ValueError(f"the schema is no Protobuf: {said[0]}")
        return (Path(folder) / "out").read_bytes()


class Protobuf:
    """A message of a schema. kind: what it is as a column."""

    def __init__(self, descriptors: bytes, path: Sequence[int]) -> None:
        """descriptors: what `compiled` made. path: which message: its number, or its parent's and its own, and so on.

        Raises ValueError where there is no such message.
        """
        import ptars
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass

        found = FileDescriptorSet.FromString(descriptors)
        whole, without = DescriptorPool(), DescriptorPool()
        for file in found.file:
            whole.Add(file)
        name = _name_of(found.file[-1], path)
        self._parse = GetMessageClass(whole.FindMessageTypeByName(name)).FromString
        _prune(found, f".{name}")
        for file in found.file:
            without.Add(file)
        config = ptars.PtarsConfig(timestamp_unit="us", duration_unit="us", time_unit="us", enum_repr="string")
        pool = ptars.HandlerPool([without.FindFileByName(file.name) for file in found.file], config)
        message = without.FindMessageTypeByName(name)
        self._handler = pool.get_for_message(message)
        self._is_empty = not message.fields
        self.kind = pa.string() if self._is_empty else normal(pa.struct(ptars.get_schema(message, config)))

    def decoded(self, bodies: Bodies) -> tuple[pa.Array, dict[int, str]]:
        """The messages, null where one does not decode, and why it does not, by its place."""
        try:
            return self._columns(bodies.array()), {}
        except (ValueError, pa.ArrowException):  # of all: which ones it is, each of them says
            reasons = {}
            for row, body in enumerate(bodies):
                if why := self._trouble(body):
                    reasons[row] = why
            rows = np.delete(np.arange(len(bodies)), list(reasons))
            return spread(self._columns(bodies.of(rows).array()), rows, len(bodies)), reasons

    def _columns(self, messages: pa.Array) -> pa.Array:
        if not len(messages):
            return pa.nulls(0, self.kind)
        found = self._handler.array_to_record_batch(messages)
        if self._is_empty:
            return pa.repeat(pa.scalar("{}"), len(messages))
        return found.to_struct_array().cast(self.kind)

    def _trouble(self, body: bytes) -> str | None:
        try:
            self._parse(body)
            self._columns(pa.array([body], pa.binary()))
        except Exception as error:  # decoders raise many kinds for bytes that are not their own
            return " ".join(str(error).split()) or type(error).__name__
        return None


def _name_of(file: Any, path: Sequence[int]) -> str:
    names, among = [file.package] if file.package else [], file.message_type
    for number in path:
        if not 0 <= number < len(among):
            raise ValueError(f"the schema has no message {list(path)}")
        names.append(among[number].name)
        among = among[number].nested_type
    return ".".join(names)


def _prune(found: Any, root: str) -> None:
    """Take out fields by which a message would be within itself, which no column can be, seen from `root`, and those of
    messages that have nothing left."""
    messages: dict[str, Any] = {}

    def collect(prefix: str, among: Any) -> None:
        for message in among:
            messages[name := f"{prefix}.{message.name}"] = message
            collect(name, message.nested_type)

    for file in found.file:
        collect(f".{file.package}" if file.package else "", file.message_type)
    done: dict[str, bool] = {}  # whether anything is left of it

    def keep(name: str, within: tuple[str, ...]) -> bool:
        if name not in done:
            message = messages[name]
            kept = [
                each
                for each in message.field
                if each.type_name not in messages
                or (each.type_name not in within and keep(each.type_name, (*within, each.type_name)))
            ]
            done[name] = bool(kept) or not message.field
            if len(kept) < len(message.field):
                del message.field[:]
                message.field.extend(kept)
        return done[name]

    keep(root, (root,))
