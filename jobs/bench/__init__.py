"""`yard bench`: runs the shipped benchmarks, keeps what they measured, judges it and draws it."""
