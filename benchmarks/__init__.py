"""How fast svcnode answers beside real peers. Run with `python -m benchmarks` from the root of the repository."""
