"""A report of this machine as one page: `python -m rocflash.report [--output FILE]`.

`measure` times attention and finds its memory, `svg` draws, `cards` has what is known of GPUs that are not here, `page` puts
the page together. Needs torch, and the command `rocflash` for verify's table.
"""
