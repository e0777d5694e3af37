"""``radix-tlru doctor``: what is installed, which seams of SGLang fit, what a server would accept.

``report`` works without SGLang. ``seams`` imports it, in a process of its own. ``checks`` is what both find, as data.
"""
