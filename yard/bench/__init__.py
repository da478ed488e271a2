"""`yard bench`: runs benchmarks, saves their results, compares them with floors and plots them."""
