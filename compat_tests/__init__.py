"""What stock clients, Apache's own tools and brokers say about us. Each test here starts other programs."""
