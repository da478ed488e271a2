"""`yard bench`: runs benchmarks (measure.py), and saves, compares and plots their records (record.py)."""
