"""What the scheduler shows of its batches: how long prefills take, and when answers are out.

===============  =================================  ==================================================
file             its job                            in → out
===============  =================================  ==================================================
batches          hooks in the scheduler             SGLang's batches → prefills and their times
stopwatch        how long a batch took              launch, result → ms
live_threshold   ξ, agreed on by all ranks          prefill batches, ms → tokens
ranks            after a fault all evict by lru     what one rank says → what all do, or the end
===============  =================================  ==================================================

Nothing here knows of the tree, or of what is learned about conversations.
"""
