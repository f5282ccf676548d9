"""Arrays of other libraries to the library and back, by DLPack; NumPy's as they are."""
