"""Hits per token: of nodes that were used as often, the largest goes first."""

from __future__ import annotations

from eval.caches.nodes import Node, NodeCache
from eval.caches.real import CHUNK_TOKENS


def hits_per_token(node: Node) -> float:
    """(hits + 1) / size, with the size in pages, which changes no order."""
    return (node.hits + 1) / len(node.names)


def hits_per_token_cache(capacity: int, page_size: int = 1) -> NodeCache:
    """The rule ``hpt`` on SGLang's tree of nodes.

    Source: sgl-project/sglang#30300, ``HitsPerTokenStrategy``. The rule needs nodes: pages all have one size. Assumed:
    of nodes with the same rank the least recently used goes, which is how SGLang's heap of nodes compares them; chunks
    of prefills, which bound the nodes, are those of the stock caches that this is compared with.
    """
    return NodeCache(capacity, page_size, rank=hits_per_token, chunk=CHUNK_TOKENS)
