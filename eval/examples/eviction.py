"""Evictions through the public API alone: ``python -m eval.examples.eviction``.

Two conversations of 2,000 tokens are cached. ξ = 600: a request with at most 600 uncached tokens meets its objective.
Q̂ = 100: the next prompt adds 100. So 2,000 + 100 − 600 = 1,500 tokens of each must stay, and the last 500 cost nothing.
"""

from radix_tlru import Config, EvictionOrder, Leaf, policy_for

policy = policy_for(Config("tlru", threshold=600, next_prompt_estimate=100, trim_chunk=500))
leaves = {
    1: Leaf(start=0, end=2_000, history=2_000, last_access=1.0),
    2: Leaf(start=0, end=2_000, history=2_000, last_access=2.0),
}
order = EvictionOrder(policy, page_size=100, leaf_of=leaves.get)
for leaf_id in leaves:
    order.add_leaf(leaf_id)

for new_id in (3, 4, 5):  # three times room for 500 tokens
    victim = order.choose_victim(500)
    assert victim is not None, "nothing is evictable"
    print(f"of leaf {victim.leaf_id}, tokens {victim.keep:,} to {victim.leaf.end:,}: {victim.phase}")
    order.remove_leaf(victim.leaf_id)
    leaves[new_id] = leaves.pop(victim.leaf_id)._replace(end=victim.keep)  # what stays is a leaf with the same history
    order.add_leaf(new_id)
