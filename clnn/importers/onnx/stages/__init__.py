"""Models whose shapes depend on data, as programs: plans for a device, and what decides between."""
