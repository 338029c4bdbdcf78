"""Who is at the other end, and how that is shown: rules without a socket, a file or a clock."""
