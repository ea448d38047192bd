"""The steps of tools/benchmarks/gpu_report.py: each a process with a budget of time, and what it writes."""
