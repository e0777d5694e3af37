"""SGLang's radix cache with the order in it, on either of its tree cores.

==================  ====================================================================================
file                its job
==================  ====================================================================================
learning_cache      SGLang's cache with a component that learns: ξ, metrics, what ranks agree on
learning_component  turns, and the policy in force; whoever evicts
unrecorded          turns that wait to be recorded
dry_run             SGLang's own eviction, beside a learner that watches
radix_cache         ``build_cache``: the real ``UnifiedRadixCache``, evicting tails
component           what does not depend on the tree: victims
rust_core           the order behind the Rust tree core, which tells little of its nodes
rust_cut            how a leaf is cut there
node_table          what that core does not tell
python_core         the order in the Python tree core; also for what follows
python_nodes        what is written on its nodes, and which can be evicted
host_tier           the tier below, with an order of its own
sessions            what open sessions refer to goes last: two orders, one behind the other
hybrids             models whose leaves are evicted whole
breaker             after a fault of ours the cache evicts as stock lru does
journal             a digest of every eviction, by which ranks are compared
==================  ====================================================================================
"""
