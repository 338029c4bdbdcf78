"""What a request means: one handler file per API family, and `routes.py`, the table of what is served."""
