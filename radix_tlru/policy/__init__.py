"""The paper: what a token costs, and which leaf gives up its tail next. Pure arithmetic over leaves, in tokens.

================  ==================================================  ==============================================
file              its job                                             in → out
================  ==================================================  ==============================================
tel               the arithmetic of tail excess latency               history, prompt, threshold → tokens, cost
models            what a policy believes                              leaf → return rate; leaf → levels of P(Q > ·)
policy            two models, a threshold and a weight                configuration → policy; policy → level costs
order             which leaf is next                                  leaves appear, vanish → a victim
pricings          the policy in force, and those before it            a change of policy → what to price anew
buckets           leaves of one price, and what prices them           a policy → buckets; a leaf → its group and level
entries           which entry of a bucket is a leaf's                 leaves' prices → what counts, what is old
monotone_queue    the queue that a bucket is                          (key, leaf) → the least
sharded_dict      a dictionary whose entries never all move at once   –
preview           what would go next, without a change                order → victims and their prices
asked_model       a model that is asked, answer by answer             a question → the answer, or its fault
checks            does a model keep its contract?                     a model → nothing, or the first wrong answer
================  ==================================================  ==============================================

Nothing here knows of SGLang, of a clock, or of what is learned: models are given.
"""
