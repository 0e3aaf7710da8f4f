"""Benchmarks: each prints what it measured, and says when a target is missed."""
