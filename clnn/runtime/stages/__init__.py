"""Sessions of models whose shapes depend on data: programs of plans and of steps on the host."""
