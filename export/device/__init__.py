"""What a device needs to classify: no torch."""
