"""Share groups' records: what one partition's leader knows of them, and what the share coordinator keeps (KIP-932)."""
