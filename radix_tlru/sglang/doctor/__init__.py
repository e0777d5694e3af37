"""``radix-tlru doctor``: what is installed, whether SGLang fits, what a server would accept.

``report`` works without SGLang. ``seams`` imports it, in a process of its own, and looks for the functions of SGLang
that the plugin needs. ``checks`` is what both find, as data.
"""
