"""Model files of ESP-DL 3.x (.espdl): the container, the FlatBuffer in it, and what it says."""
