"""Arrays of other libraries through DLPack, and NumPy arrays directly."""
