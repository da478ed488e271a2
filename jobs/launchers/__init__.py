"""The rows of the launch matrix, one file each; launcher.py says what a file holds and finds them."""
