"""The cluster of a metadata quorum (KRaft), as a member without a vote sees it: its log, its image, its controllers."""
