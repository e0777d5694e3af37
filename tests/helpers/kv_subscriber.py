"""A subscriber to the KV events of a server, as a router that follows caches is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from eval.live.server import Server

Placed = tuple[Any, tuple[int, ...]]
"""A block: the hash of the one that it follows, or its namespace, and its tokens."""


class Subscriber:
    """Knows which blocks are resident, by events alone; a flush is where it begins.

    Raises AssertionError for a stream that nothing can be reconstructed from: one with a gap, or that stores a block
    twice, removes one that is not there, or stores one behind a block that is gone.
    """

    def __init__(self, server: Server, endpoint: str) -> None:
        self.blocks: dict[int, Placed] = {}  # by their hashes
        self.removed = 0  # blocks, those of a flush aside
        self._hashes: dict[Placed, int] = {}
        self._began = False
        self._batch: int | None = None  # number of the last one
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)
        deadline = time.monotonic() + 60
        while not self._began:  # what is published before the subscription has reached the server is not sent to it
            assert time.monotonic() < deadline, f"no flush was told of by {endpoint}"
            server.flush_cache()
            self.read()

    def close(self) -> None:
        self._socket.close(linger=0)

    def read(self, until: Callable[[], bool] = lambda: True, quiet_s: float = 0.1) -> None:
        """Take in what has come, until something is so and then nothing came for so long.

        Raises:
            AssertionError: it does not come to be so.
        """
        deadline = time.monotonic() + 60
        while True:
            while self._socket.poll(quiet_s * 1_000):
                self._take_in(*self._socket.recv_multipart())
            if until():
                return
            assert time.monotonic() < deadline, "what was asked for is in no event"

    def _take_in(self, _topic: bytes, number: bytes, batch: bytes) -> None:
        sequence = int.from_bytes(number, "big")
        if self._batch is not None:
            assert sequence == self._batch + 1, "a batch of events is missing"
        self._batch = sequence
        for event in self._decoder.decode(batch).events:
            self._began |= isinstance(event, AllBlocksCleared)
            if self._began:
                self._take(event)

    def _take(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        match event:
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                for block in event.block_hashes:
                    del self._hashes[self.blocks.pop(block)]
                self.removed += len(event.block_hashes)
            case AllBlocksCleared():
                self.blocks.clear()
                self._hashes.clear()

    def _store(self, event: BlockStored) -> None:
        before: Any = event.parent_block_hash
        if before is None:
            before = (event.cache_salt, event.lora_name)
        else:
            assert before in self.blocks, "a block is stored behind one that is gone"
        size = event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        for number, block in enumerate(event.block_hashes):
            assert block not in self.blocks, "a block is stored twice"
            placed: Placed = (before, tuple(event.token_ids[number * size : (number + 1) * size]))
            self.blocks[block], self._hashes[placed] = placed, block
            before = block

    def cached(self, tokens: Sequence[int], page_size: int, cache_salt: str | None = None) -> int:
        """Tokens of the longest resident prefix."""
        before: Any = (cache_salt, None)
        for start in range(0, len(tokens) - page_size + 1, page_size):
            block = self._hashes.get((before, tuple(tokens[start : start + page_size])))
            if block is None:
                return start
            before = block
        return len(tokens) // page_size * page_size

    def holds(self, tokens: Sequence[int], page_size: int, cache_salt: str | None = None) -> bool:
        """Whether these whole pages are resident."""
        return self.cached(tokens, page_size, cache_salt) == len(tokens)
