"""Single layers of many sizes on one device, as shares of what the device reaches at most."""
