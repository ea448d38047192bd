"""Float networks as bit-exact simulations of what an embedded system computes with integers."""
