"""The library as Python calls it: structs, memory for a call, options. Knows no array and no torch."""
