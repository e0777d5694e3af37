"""For every Python that a test starts: fewer looks for garbage.

Importing SGLang makes a million objects that stay, and a quarter of its time is the collector's, which finds nothing in
them. A server is three such imports, and they are most of its start.
"""

import gc

gc.set_threshold(100_000, 5, 2)
