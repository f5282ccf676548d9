"""A report of this machine as one page: `python -m rocflash.report [--output FILE]`.

`measure` measures time and memory of attention, `svg` draws plots, `cards` has predictions for AMD
GPUs, `page` generates the HTML. Requires torch, and the command `rocflash` for the table of verify.
"""
