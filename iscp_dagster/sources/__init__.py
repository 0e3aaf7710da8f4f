"""Source Delta tables: what changed, what they look like, and how to reach them."""
