"""Measurements of this machine and this product, run by `make bench`; no user imports them."""
