"""What an operator sees at ``/metrics``, under SGLang's registry, names and rank labels.

In come the counts of a cache's component, out go Prometheus' counters and gauges. Nothing is evicted or learned here.

=========  =======================================================================  ==============================
file       says                                                                     brought up to date
=========  =======================================================================  ==============================
objective  ξ and w in force, and the line that ξ comes from                         at every report
order      what was evicted and could be; nothing in a dry run, where stock evicts  at every report
learner    TEL so far, what it would be under other policies, returns predicted     if a request was served since
victims    what goes next, and what a token of it costs                             in 0.2 % of the time at most
tail       has all of these report
maker      makes counters and gauges under the labels of a rank
=========  =======================================================================  ==============================

``radix-tlru top`` shows it all on a screen.
"""

from radix_tlru.sglang.metrics.tail import TailMetrics

__all__ = ["TailMetrics"]
