"""Every Kafka message, one file per family of APIs.

A class is the schema: it says once, for all versions, which fields travel, in which order, since and until when.
`protocol.message` compiles it per version; `protocol.apis` lists what there is. Class names are Kafka's, field
names are Kafka's in snake case, and structs stand below the message that uses them. In a declaration,
`default=[]` stands for a fresh empty list and `default={}` for the struct with its own defaults.

Nothing is imported here: the user of a family imports its file.
"""
