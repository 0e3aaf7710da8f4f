"""The demo: this machine's own Python documentation, indexed end to end."""
