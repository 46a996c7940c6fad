"""Split benchmarks: datasets, runs, metrics, reports, plots."""
