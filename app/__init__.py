"""The page on which people teach a learner, watch it, and trust it or not. `python -m app --help` says more."""
