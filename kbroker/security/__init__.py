"""What proves who is at the other end of a connection: certificates, the stores they come in, and names made of them.

Bytes in, values out: files, sockets and Python's `ssl` are the runtime's.
"""
