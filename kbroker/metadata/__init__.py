"""What the cluster knows about itself: the shared tree of nodes, and each broker's own image of brokers and topics."""
