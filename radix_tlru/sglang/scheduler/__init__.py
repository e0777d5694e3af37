"""What the scheduler shows of its batches: how long prefills take, and who queues for them.

===============  =================================  ==================================================
file             its job                            in → out
===============  =================================  ==================================================
batches          hooks in the scheduler             SGLang's batches → the observer of the cache
observer         what a cache wants to know         prefills → ξ and w
stopwatch        how long a batch took              launch, result → ms
live_threshold   ξ, agreed on by all ranks          prefill batches, ms → tokens
===============  =================================  ==================================================

Nothing here knows of the tree, or of what is learned about conversations.
"""
