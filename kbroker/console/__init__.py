"""The console: what is in a cluster and what happens on the wire, as pages for a browser and as JSON for scripts.

It runs in a process of its own. What the protocol tells, it asks any cluster as a client does, over connections of the
session's own user (`cluster.py`): rights are the protocol's. What only a broker knows of itself it asks the broker that
has started it, over one socket (`beside.py` at the broker's end, `inside.py` at this one).

A broker imports nothing of this package unless `console.listener` is set. docs/console.md is for its users,
docs/decisions/0037-console.md says what it is made of and why.
"""

SAMPLED_S = 5.0
MOST_SAMPLES = 720
"""How often what curves are made of is counted, and how many of these samples are kept: an hour of them."""
CLIENT_ID = "kbroker-console"
"""The name of its connections: faults do not meet them."""
