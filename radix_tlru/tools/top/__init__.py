"""``radix-tlru top``: a server's eviction on a screen, live.

=========  ====================================  ===========================================
file       its job                               in → out
=========  ====================================  ===========================================
live       looks again and again                 a URL → a screen that follows the server
screen     where each panel stands               two snapshots → a screen
status     the policy in force, what it evicted  two snapshots → a column for each rank
shadows    the same requests by other policies   a rank → TEL of each candidate
returns    were returns predicted well?          a rank → predicted and seen, by age
victims    what goes next, and why               a rank → the next leaves
prefilled  what no request asked for             a snapshot → warm prompts, prefills ahead
cells      how numbers are written               a number → text
=========  ====================================  ===========================================

In come snapshots of the server's metrics (:mod:`~radix_tlru.tools.scrape`). Nothing is asked of the server but
``/metrics``, so a look changes nothing there.
"""

from radix_tlru.tools.top.live import watch
from radix_tlru.tools.top.screen import frame

__all__ = ["frame", "watch"]
