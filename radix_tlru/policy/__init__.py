"""The paper: what a token costs, and which leaf gives up its tail next. Pure arithmetic over leaves, in tokens.

================  ==================================================  =============================================
file              its job                                             in → out
================  ==================================================  =============================================
tel               the arithmetic of tail excess latency               history, prompt, threshold → tokens, cost
models            what a policy believes                              leaf → return rate; leaf → levels of P(Q > ·)
policy            two models, a threshold and a weight                configuration → policy; policy → level costs
order             which leaf is next                                  leaves appear, vanish → a victim
monotone_queue    a bucket of the order                               (key, leaf) → the least
preview           what would go next, without a change                order → victims and their prices
================  ==================================================  =============================================

Nothing here knows of SGLang, of a clock, or of what is learned: models are given.
"""
