"""Files of a job's own beside its data (manifests, states), wherever Hadoop's file systems reach.

Called by archive, replay and mirror on the driver. A file is written under another name and put in place whole: it is
there or it is not.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrameReader, SparkSession

from kbroker.pipeline.errors import PipelineError

MANY = 50
"""Files from which on a job of Spark's reads them sooner than the driver does one after another."""
_MISSING = "java.io.FileNotFoundException"
OBJECTS = ("s3a", "gs")
"""File systems in which a file is there once it is written whole; a rename would copy it."""
_THERE = ("FileAlreadyExistsException", "RemoteFileChangedException")
"""What Java raises where a file is there that was not to be; the second is S3A's, of a condition that does not hold."""
_IF_NOT_THERE = "fs.option.create.conditional.overwrite"


def files_as_they_are(spark: SparkSession) -> DataFrameReader:
    """A reader of files by their names: Spark would take `[`, `{` and `*` in a folder's name for a pattern."""
    return spark.read.option("__globPaths__", "false")


def as_path(name: str) -> str:
    """A folder's or a file's name as Hadoop takes it: it would take what is before a colon for a file system's. Raises
    PipelineError for none."""
    if not name:
        raise PipelineError("a folder is needed: its name is empty")
    is_local = ":" in name.partition("/")[0] and not re.match("[A-Za-z][A-Za-z0-9+.-]*:/", name)
    return os.path.abspath(name) if is_local else name


class Storage:
    """A folder, by any path or URI that Spark takes."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        path = self._jvm.org.apache.hadoop.fs.Path(as_path(root))
        self._files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._gateway: Any = spark.sparkContext._gateway
        self.root = str(self._files.makeQualified(path).toString()).rstrip("/")

    def path(self, name: str) -> str:
        """The whole path of something in the folder."""
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        """Whether it is there."""
        return bool(self._files.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """Names of files and folders in a folder, sorted; none if it is not there."""
        try:
            return sorted(each.getPath().getName() for each in self._files.listStatus(self._path(folder)))
        except Py4JJavaError as error:
            if _MISSING not in str(error):
                raise
            return []

    def files(self, folder: str = "") -> list[tuple[str, int]]:
        """All files below a folder: path within the storage, and bytes."""
        found, each = [], self._files.listFiles(self._path(folder), True)
        while each.hasNext():
            status = each.next()
            found.append((self.name(str(status.getPath().toString())), int(status.getLen())))
        return sorted(found)

    def name(self, path: str) -> str:
        """The name within the folder that a whole path has."""
        whole = self._files.makeQualified(self._jvm.org.apache.hadoop.fs.Path(path))
        return str(whole.toString()).removeprefix(self.root + "/")

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with all in it."""
        self._files.delete(self._path(name), True)

    def read_text(self, name: str) -> str:
        """What is in a file."""
        stream = self._files.open(self._path(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def read_json_if_there(self, name: str) -> Any:
        """What is in a file of JSON; None if it is not there: an object store is asked once. Raises as `read_json`."""
        try:
            return self.read_json(name)
        except Py4JJavaError as error:
            if _MISSING not in str(error):
                raise
            return None

    def read_json(self, name: str) -> Any:
        """What is in a file of JSON. Raises PipelineError, naming the file, where it is damaged."""
        try:
            return json.loads(self.read_text(name))
        except (ValueError, Py4JJavaError) as error:
            if isinstance(error, Py4JJavaError) and "ChecksumException" not in str(error):
                raise
            raise PipelineError(f"{self.path(name)} is damaged: put a sound copy in its place") from error

    def read_all_json(self, names: Sequence[str]) -> list[Any]:
        """What is in files of JSON, in their order; many are read in one go. Raises as `read_json`."""
        if len(names) < MANY:
            return [self.read_json(name) for name in names]
        paths = [self.path(name) for name in names]
        rows = files_as_they_are(self.spark).text(paths, wholetext=True).select("_metadata.file_name", "value")
        try:
            found = {row.file_name: json.loads(row.value) for row in rows.collect()}
        except Exception:  # one of them: which, the loop below says
            found = {}
        return [found.get(name.rpartition("/")[2]) or self.read_json(name) for name in names]

    def write_json(self, name: str, value: Any) -> None:
        """Write a file of JSON whole, in place of one that is there."""
        if self._files.getScheme() in OBJECTS:
            self._write(name, value)
        else:
            self._put_in_place(name, value, new=False)

    def create_json(self, name: str, value: Any) -> bool:
        """Write a file of JSON whole, unless one is there: whether it was written. Of several that do so at a time one
        is told True; who writes the very same may be, too: an answer may have been lost."""
        try:
            if self._files.getScheme() in OBJECTS:
                self._write(name, value, new=True)
            else:
                self._put_in_place(name, value, new=True)
        except FileExistsError:
            return False
        except Py4JJavaError as error:
            if not any(each in str(error) for each in _THERE):
                raise
            return bool(self.read_json_if_there(name) == value)
        return True

    def _put_in_place(self, name: str, value: Any, *, new: bool) -> None:
        """Write under another name, and rename; new: raises FileExistsError, or what Java has for it."""
        self._files.mkdirs(self._path(name).getParent())
        scratch = f"{name.rpartition('/')[0]}/.{name.rpartition('/')[2]}.{uuid.uuid4().hex}".lstrip("/")
        self._write(scratch, value)
        try:
            if self._files.getScheme() == "file":
                _renamed(*(Path(str(self._path(each).toUri().getPath())) for each in (scratch, name)), new=new)
            else:
                self._rename(scratch, name, new=new)
        finally:
            self.delete(scratch)

    def _rename(self, before: str, after: str, *, new: bool) -> None:
        conf = self.spark.sparkContext._jsc.hadoopConfiguration()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._files.getUri(), conf)
        kinds = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._gateway.new_array(kinds, 1)
        options[0] = kinds.NONE if new else kinds.OVERWRITE
        context.rename(self._path(before), self._path(after), options)

    def _write(self, name: str, value: Any, *, new: bool = False) -> None:
        if not new:
            stream = self._files.create(self._path(name), True)
        elif self._files.getScheme() == "s3a":
            stream = self._files.createFile(self._path(name)).overwrite(True).must(_IF_NOT_THERE, "true").build()
        else:
            stream = self._files.create(self._path(name), False)
        try:
            stream.write(bytearray(json.dumps(value, indent=1).encode()))
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name))


def _renamed(before: Path, after: Path, *, new: bool) -> None:
    """Rename a local file, in one step: Hadoop would remove first what is there, and look first whether it is. With it
    goes the file of checksums that Hadoop has beside each, without which a file is as good."""
    sums = [path.with_name(f".{path.name}.crc") for path in (before, after)]
    if new:
        os.link(before, after)
    else:
        sums[1].unlink(missing_ok=True)
        os.replace(before, after)
    with suppress(FileNotFoundError):
        os.replace(*sums)
