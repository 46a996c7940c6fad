"""Edge HPCR: image classifiers that learn new classes on the device, for life."""

__version__ = "0.2.0"
