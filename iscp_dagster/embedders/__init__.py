"""Functions that turn texts into vectors, and how to find them."""
