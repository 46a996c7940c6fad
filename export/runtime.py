"""`python -m export.runtime`, the name that devices start it by; the program is `export.device.runtime`."""

from export.device.runtime import leave, main

if __name__ == "__main__":
    leave(main())
