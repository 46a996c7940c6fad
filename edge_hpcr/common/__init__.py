"""What every room uses: errors, units, files, text."""
