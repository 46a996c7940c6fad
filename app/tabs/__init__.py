"""One file a tab: what it shows, and what its controls do."""
