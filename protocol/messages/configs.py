"""Settings: DescribeConfigs (key 32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74).

Sent by admin clients. A resource is a topic or a broker: `resource_type` 2 is a topic, 4 a broker, 8 a broker's
loggers, 16 a client's metrics subscription (KIP-714), 32 a group. Its `resource_name` is the topic's name, the broker's
node id in decimal, the group's id; an empty name with type 4 stands for the defaults of all brokers in the cluster.
What concerns one broker has to be sent to it; the rest any broker answers.

Names and values are text, as in server.properties. Where a value comes from is told by its source: 1 set on the topic,
2 set on this broker at run time, 3 set for all brokers at run time, 4 from the broker's file, 5 the built-in default, 6
set on the broker's logger, 7 set on the client metrics subscription, 0 unknown. The lower of 1 to 5 wins.
"""

from __future__ import annotations

from protocol.message import Array, Bool, Int8, Int16, Int32, Message, String, Struct, plain, since, until


class DescribeConfigsRequest(Message, api=32, versions="0-4", flexible="4+"):
    """Asks for the settings of some resources.

    Versions:
      0  introduced by KIP-133
      1  include_synonyms (KIP-226)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  include_documentation (KIP-569)
      4  flexible (KIP-482)

    Kafka 4 serves 1 and up.
    """

    resources: Array[DescribeConfigsResource]
    include_synonyms: Bool = since(1, default=False)  # True: tell the values that lose, too
    include_documentation: Bool = since(3, default=False)


class DescribeConfigsResource(Struct):
    """A resource, and which of its settings."""

    resource_type: Int8  # 2 topic, 4 broker, 8 broker logger, 16 client metrics
    resource_name: String  # see the top of this file
    configuration_keys: Array[String] | None  # names of the settings; None: all


class DescribeConfigsResponse(Message, api=32, versions="0-4", flexible="4+"):
    """The settings of each resource.

    Versions:
      0  introduced by KIP-133
      1  config_source and synonyms instead of is_default (KIP-226)
      2  as 1, throttled after the response (KIP-219)
      3  config_type and documentation (KIP-569)
      4  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    results: Array[DescribeConfigsResult]


class DescribeConfigsResult(Struct):
    """The settings of one resource, or why they are not told."""

    error_code: Int16
    error_message: String | None  # empty: no error; Kafka's brokers never send None
    resource_type: Int8
    resource_name: String
    configs: Array[DescribeConfigsResourceResult]


class DescribeConfigsResourceResult(Struct):
    """One setting."""

    name: String
    value: String | None  # None: it has none, or is_sensitive hides it
    read_only: Bool  # True: cannot be changed while the broker runs
    is_default: Bool = until(0, default=False)  # version 0 only: it was never set
    config_source: Int8 = since(1, default=-1, ignorable=True)  # see the top of this file; -1: version 0 does not tell
    is_sensitive: Bool  # a secret: its value is never told
    # every value it has somewhere, the winning one first; empty unless asked for
    synonyms: Array[DescribeConfigsSynonym] = since(1, default=[], ignorable=True)
    # 1 boolean, 2 string, 3 int32, 4 int16, 5 int64, 6 double, 7 list, 8 class, 9 password; 0 unknown
    config_type: Int8 = since(3, default=0, ignorable=True)
    documentation: String | None = since(3, default="", ignorable=True)  # None: none, or not asked for


class DescribeConfigsSynonym(Struct):
    """A value that the setting has in some place."""

    name: String  # its name there: what a topic calls retention.ms, a broker calls log.retention.ms
    value: String | None  # None: hidden
    source: Int8  # see the top of this file


class AlterConfigsRequest(Message, api=33, versions="0-2", flexible="2+"):
    """The complete settings of some resources: whatever is not named goes back to its default.

    Deprecated in favour of IncrementalAlterConfigs, since two clients that read, change and write overwrite each other
    (KIP-339).

    Versions:
      0  introduced by KIP-133
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
    """

    resources: Array[AlterConfigsResource]
    validate_only: Bool  # True: check everything, change nothing


class AlterConfigsResource(Struct):
    """The new settings of one resource."""

    resource_type: Int8  # 2 topic, 4 broker
    resource_name: String  # see the top of this file
    configs: Array[AlterableConfig]


class AlterableConfig(Struct):
    """One setting."""

    name: String
    value: String | None  # None is refused: leave the setting out


class AlterConfigsResponse(Message, api=33, versions="0-2", flexible="2+"):
    """What became of each resource.

    Versions:
      0  introduced by KIP-133
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    responses: Array[AlterConfigsResourceResponse]


class AlterConfigsResourceResponse(Struct):
    """The outcome for one resource: all its settings were changed, or none."""

    error_code: Int16
    error_message: String | None  # None: no error
    resource_type: Int8
    resource_name: String


class IncrementalAlterConfigsRequest(Message, api=44, versions="0-1", flexible="1+"):
    """Changes to the settings of some resources: whatever is not named stays as it is.

    Versions:
      0  introduced by KIP-339
      1  flexible (KIP-482)
    """

    resources: Array[IncrementalAlterConfigsResource]
    validate_only: Bool  # True: check everything, change nothing


class IncrementalAlterConfigsResource(Struct):
    """The changes to one resource."""

    resource_type: Int8  # 2 topic, 4 broker, 8 broker logger, 16 client metrics
    resource_name: String  # see the top of this file
    configs: Array[IncrementalAlterableConfig]


class IncrementalAlterableConfig(Struct):
    """One change."""

    name: String
    config_operation: Int8  # 0 set, 1 delete: back to the default, 2 append to a list, 3 subtract from a list
    value: String | None  # for lists separated by commas; None only with delete


class IncrementalAlterConfigsResponse(Message, api=44, versions="0-1", flexible="1+"):
    """What became of each resource.

    Versions:
      0  introduced by KIP-339
      1  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    responses: Array[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Message, api=74, versions="0-1", flexible="0+"):
    """Asks which resources may have settings.

    Versions:
      0  introduced by KIP-714 as ListClientMetricsResources: those of type 16, and no others
      1  resource_types (KIP-1142)
    """

    resource_types: Array[Int8] = since(1, default=[])  # empty: all that the broker knows; see the top of this file


class ListConfigResourcesResponse(Message, api=74, versions="0-1", flexible="0+"):
    """The resources.

    Versions:
      0  introduced by KIP-714
      1  resource_type (KIP-1142)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16  # UNSUPPORTED_VERSION: a type that this version does not list
    config_resources: Array[ConfigResource]


class ConfigResource(Struct):
    """A resource."""

    resource_name: String  # see the top of this file
    resource_type: Int8 = since(1, default=16, ignorable=True)
