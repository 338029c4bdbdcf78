"""meta.properties: both versions read, strangers refused, directories compared."""

from __future__ import annotations

import pytest

from kbroker.log.checkpoints import format_uuid
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.metaproperties import MetaProperties, check_agreement, format_meta_properties, parse_meta_properties

ID = bytes(range(1, 17))


@pytest.mark.parametrize(
    "meta",
    [
        MetaProperties(),
        MetaProperties(0, "c1", 3, ID),
        MetaProperties(0, None, 3),
        MetaProperties(1, "c1", 3),
        MetaProperties(1, "a:b=c #!\\ ", 3, ID),
    ],
)
def test_meta_properties_read_back(meta: MetaProperties) -> None:
    assert parse_meta_properties(format_meta_properties(meta)) == meta


def test_kraft_file_of_kafka_reads() -> None:
    text = (
        "#\n#Sat Nov 21 10:04:00 UTC 2026\nnode.id=1\ndirectory.id=AQIDBAUGBwgJCgsMDQ4PEA\nversion=1\ncluster.id=x-_1\n"
    )
    assert parse_meta_properties(text) == MetaProperties(1, "x-_1", 1, ID)


def test_zookeeper_file_of_kafka_reads() -> None:
    text = "#\n#Sat Nov 21 10:04:00 UTC 2026\nbroker.id=7\nversion=0\ncluster.id=x\n"
    assert parse_meta_properties(text) == MetaProperties(0, "x", 7, None)


def test_newer_version_is_refused() -> None:
    with pytest.raises(NewerFormatError, match="has version 2, this program knows versions 0 and 1"):
        parse_meta_properties("version=2\n")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("version=x\n", "version: is not a number: 'x'"),
        ("version=-1\n", "version: has version -1"),
        ("version=1\nnode.id=1\n", "cluster.id: is missing"),
        ("version=1\ncluster.id=1\nbroker.id=1\n", "node.id: is missing"),
        ("broker.id=99999999999\n", "broker.id: is not a number"),
        ("broker.id=2147483648\n", "broker.id: is not a number"),
        ("directory.id=AAAAAAAAAAAAAAAAAAAAAA\n", "directory.id: is no directory's id"),
        ("directory.id=zzz\n", "directory.id: is no directory's id"),
        ("cluster.id=\\u12\n", "followed by '12'"),
    ],
)
def test_broken_file_names_the_key(text: str, fault: str) -> None:
    with pytest.raises(CorruptFileError, match=fault):
        parse_meta_properties(text)


def test_directories_that_agree_have_no_fault() -> None:
    metas = {"/a": MetaProperties(0, "c", 1, ID), "/b": MetaProperties(0, None, None, None)}
    assert check_agreement(metas, cluster_id="c", node_id=1) is None


@pytest.mark.parametrize(
    ("metas", "fault"),
    [
        (
            {"/a": MetaProperties(0, "c", 1), "/b": MetaProperties(0, "c", 2)},
            "/b/meta.properties: broker id 2 differs from 1 of /a/meta.properties",
        ),
        (
            {"/a": MetaProperties(0, "c", 1), "/b": MetaProperties(0, "d", 1)},
            "/b/meta.properties: cluster id d differs from c of /a/meta.properties",
        ),
        (
            {"/a": MetaProperties(0, "c", 1, ID), "/b": MetaProperties(0, "c", 1, ID)},
            "/b/meta.properties: has the directory id of /a",
        ),
    ],
)
def test_directories_that_disagree_are_both_named(metas: dict[str, MetaProperties], fault: str) -> None:
    assert str(check_agreement(metas)) == fault


def test_directory_of_another_broker_is_named() -> None:
    fault = check_agreement({"/a": MetaProperties(0, "c", 2, ID)}, node_id=1)
    assert str(fault) == "/a/meta.properties: broker id 2 differs from 1 of this broker's configuration"


def test_reserved_directory_id_is_refused() -> None:
    with pytest.raises(CorruptFileError):
        parse_meta_properties(f"directory.id={format_uuid((99).to_bytes(16, 'big'))}\n")
