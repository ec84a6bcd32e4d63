"""Literal restatements of the formulas, for tests and benchmarks only."""
