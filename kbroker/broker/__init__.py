"""A broker's parts beside its logs, replicas, controller and groups, the facts between them, their assembly."""
