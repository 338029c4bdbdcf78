"""Tests of kbroker/quorum, and of the parts of a broker that follow a quorum."""
