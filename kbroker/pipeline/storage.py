"""Files of a job's own beside its data (manifests, states), wherever Hadoop's file systems reach.

Called by archive, replay and mirror on the driver. A file is written under another name and put in place whole: it is
there or it is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrameReader, SparkSession

from kbroker.pipeline.errors import PipelineError

MANY = 50
"""Files from which on a job of Spark's reads them sooner than the driver does one after another."""


def files_as_they_are(spark: SparkSession) -> DataFrameReader:
    """A reader of files by their names: Spark would take `[`, `{` and `*` in a folder's name for a pattern."""
    return spark.read.option("__globPaths__", "false")


class Storage:
    """A folder, by any path or URI that Spark takes."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._gateway: Any = spark.sparkContext._gateway
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._files.getUri(), conf)
        self.root = str(self._files.makeQualified(path).toString()).rstrip("/")

    def path(self, name: str) -> str:
        """The whole path of something in the folder."""
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        """Whether it is there."""
        return bool(self._files.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """Names of files and folders in a folder, sorted; none if it is not there."""
        if not self.exists(folder):
            return []
        return sorted(each.getPath().getName() for each in self._files.listStatus(self._path(folder)))

    def files(self, folder: str = "") -> list[tuple[str, int]]:
        """All files below a folder: path within the storage, and bytes."""
        found, each = [], self._files.listFiles(self._path(folder), True)
        while each.hasNext():
            status = each.next()
            path = str(self._files.makeQualified(status.getPath()).toString())
            found.append((path.removeprefix(self.root + "/"), int(status.getLen())))
        return sorted(found)

    def move(self, old: str, new: str) -> None:
        """Rename a file, making the folders above its new name; what is there already stays."""
        target = self._path(new)
        if self._files.exists(target):
            return
        self._files.mkdirs(target.getParent())
        if not self._files.rename(self._path(old), target):
            raise OSError(f"{self.path(old)}: cannot be moved to {new}")

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with all in it."""
        self._files.delete(self._path(name), True)

    def read_json(self, name: str) -> Any:
        """What is in a file of JSON. Raises PipelineError, naming the file, where it is damaged."""
        stream = self._files.open(self._path(name))
        try:
            return json.loads(bytes(stream.readAllBytes()).decode())
        except (ValueError, Py4JJavaError) as error:
            if isinstance(error, Py4JJavaError) and "ChecksumException" not in str(error):
                raise
            raise PipelineError(f"{self.path(name)} is damaged: put a sound copy in its place") from error
        finally:
            stream.close()

    def read_all_json(self, names: Sequence[str]) -> list[Any]:
        """What is in files of JSON, in their order; many are read in one go. Raises as `read_json`."""
        if len(names) < MANY:
            return [self.read_json(name) for name in names]
        paths = [self.path(name) for name in names]
        rows = files_as_they_are(self._spark).text(paths, wholetext=True).select("_metadata.file_name", "value")
        try:
            found = {row.file_name: json.loads(row.value) for row in rows.collect()}
        except Exception:  # one of them: which, the loop below says
            found = {}
        return [found.get(name.rpartition("/")[2]) or self.read_json(name) for name in names]

    def write_json(self, name: str, value: Any) -> None:
        """Write a file of JSON whole, in place of one that is there."""
        self._files.mkdirs(self._path(name).getParent())
        scratch = f"{name.rpartition('/')[0]}/.{name.rpartition('/')[2]}.new".lstrip("/")
        stream = self._files.create(self._path(scratch), True)
        try:
            stream.write(bytearray(json.dumps(value, indent=1).encode()))
        finally:
            stream.close()
        option = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._gateway.new_array(option, 1)
        options[0] = option.OVERWRITE
        self._context.rename(self._path(scratch), self._path(name), options)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name))
