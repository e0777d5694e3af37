"""The Full-attention component that learns from what its cache serves, whoever evicts.

It is told of each request that was served, by SGLang, and has the learner say by which policy to evict. Two components
go on from here: :class:`~radix_tlru.sglang.cache.component.TailComponent` evicts by that policy, and that of a dry run
(:mod:`~radix_tlru.sglang.cache.dry_run`) leaves eviction to SGLang.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

from radix_tlru.config import Config
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.records import is_known
from radix_tlru.policy.policy import Policy, policy_for
from radix_tlru.sglang.cache.breaker import Breaker
from radix_tlru.sglang.cache.unrecorded import LEAST_RECORDED, ServedTurn, UnrecordedTurns
from radix_tlru.sglang.explainer import Explainer
from radix_tlru.sglang.requests.metadata import is_made_ahead, metadata_of
from radix_tlru.sglang.requests.turns import Prefills, is_turn, turn_of
from radix_tlru.sglang.state import StateKeeper

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from radix_tlru.learning.records import Conversation, Turn

__all__ = ["LearningComponent", "component_for"]

logger = logging.getLogger(__name__)

_MOST_UNLEARNED = 8
"""Turns that wait for an idle moment to be learned from. If more do, every step learns a slice."""


class LearningComponent(FullComponent):
    """Full-attention KV, and a learner that is shown the turns of its cache.

    A subclass says how a conversation is written on a node. A subclass of that fixes the ``config``
    (:func:`component_for`).
    """

    config: Config

    state: StateKeeper | None = None
    """Keeps what is learned from one run to the next, if it is kept."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        super().__init__(cache, params)
        self.page_size: int = params.page_size
        pool: int = params.token_to_kv_pool_allocator.size_full  # of what full attention caches
        self._pool_size = pool  # tokens
        self.config = self.config.for_pool(pool)
        self.learner: Learner | None = None
        """Told of every request that was served, and names the policy in force; none under ``lru``."""
        if self.config.policy != "lru":
            learned = None if self.state is None else self.state.load()
            watched = params.enable_metrics or self.config.dry_run
            self.learner = Learner(self.config, pool, self.page_size, watched, learned)
            if learned is not None and learned.verdict.preferred == self.learner.in_force:
                self._say_in_force(self.learner.in_force, "as before")
        self.explainer = Explainer(self.config, pool, self.page_size) if self.config.explain else None
        """Told of evictions and turns, if any is to be explained."""
        self.policy = policy_for(self.config)
        self.breaker = Breaker(self._fall_back)
        self.call_tokens: Sequence[int] = ()
        """Token ids that begin a call of a tool; none: how an answer ended is told by its last tokens."""
        self._stamp = 0.0  # of the last request that was served, s
        self.learns_later = False
        """Whether a batch is being processed: what can wait is done at its end, or when the server is idle."""
        self.learns_when_idle = True
        """Whether all ranks are idle at the same steps: stages of a pipeline are not."""
        self._has_steps = False  # of a scheduler: without one there is no later
        self._unrecorded = UnrecordedTurns()
        self._prefills = Prefills()

    # ---- the tree ----

    @abstractmethod
    def has_children(self, node_id: NodeId) -> bool:
        """Whether anything cached continues the path that ends at the node."""

    @abstractmethod
    def write_use(self, node_id: NodeId, conversation: Conversation) -> None:
        """Write on a node, if it is still there, which conversation's turn used it last."""

    @abstractmethod
    def conversation_at(self, node_id: NodeId) -> Conversation | None:
        """The conversation that is written on a node."""

    # ---- the policy in force ----

    def use_threshold(self, threshold: int) -> None:
        """Judge, and evict, by another ξ (tokens) from now on."""
        assert self.learner is not None, "lru has no threshold"
        self.learner.use_threshold(threshold)
        self._put_in_force(self.learner.policy)

    def _put_in_force(self, policy: Policy) -> None:
        if policy is not self.policy:
            self.policy = policy
            self.switch_policy()

    def switch_policy(self) -> None:
        """Another policy is in force."""

    def renew_prices(self) -> None:
        """A turn was served, and is learned from."""

    def _fall_back(self) -> None:
        """Learn nothing from now on, and evict by lru."""
        self.learner = None
        self.policy = policy_for(Config("lru", trim_chunk=self.config.trim_chunk))

    # ---- conversations ----

    def mark_queued(self, node_id: NodeId, req: Req | None) -> None:
        """A leaf was looked up, for a request that is queued or about to be served: so its conversation is back.

        Not so if the request was made ahead of one: then nobody has asked.
        """
        if self.learner is None:
            return
        try:
            if req is not None and is_made_ahead(req):
                return
            self._unrecorded.mark_back(node_id)
            conversation = self.conversation_at(node_id)
            if conversation is not None and self.learner is not None:
                self.learner.mark_queued(conversation)
        except Exception as error:
            self.breaker.trip("to learn that a request is queued", error)

    def end_conversation(self, conversation: Conversation) -> None:
        """Nobody will come back for what that conversation alone has. Its leaf must be out of the order meanwhile."""
        if self.learner is not None:
            try:
                self.learner.end_conversation(conversation)
                self._put_in_force(self.learner.policy)
            except Exception as error:
                self.breaker.trip("to learn of the end of a conversation", error)

    def cleanup_after_caching_req(
        self,
        req: Req,
        is_finished: bool,
        insert_result: InsertResult | None = None,
        insert_params: InsertParams | None = None,
    ) -> None:
        """A request has been served, if it is finished and its context is in the tree."""
        super().cleanup_after_caching_req(req, is_finished, insert_result, insert_params)
        if insert_result is None or insert_result.rotation_tail_declined:
            return
        node_id = insert_result.last_device_node
        try:
            assert insert_params is not None, "what was inserted has a key"
            if not len(insert_params.key):  # it is less than a page
                return
            if is_finished:
                self._learn_from(req, node_id, insert_params.key)
            else:
                self._write_first_use(node_id)
        except Exception as error:
            self.breaker.trip("to read what a request was", error)

    def _write_first_use(self, node_id: NodeId) -> None:
        """Until a turn is recorded that ends at the node, it was used now, by somebody of whom nothing is known.

        Chunks of prompts, requests for no token and turns that wait to be recorded are no reason to go first.
        """
        if self.learner is not None and not is_known(self.conversation_at(node_id)):
            self.write_use(node_id, self.learner.newcomer())

    def _learn_from(self, req: Req, node_id: NodeId, key: RadixKey) -> None:
        """A request has been served, and its context ends at that node."""
        stamp, hints, is_made_ahead = metadata_of(req)
        if is_made_ahead:
            self.record_prefill(node_id, turn_of(req, key, self._stamp))
        elif is_turn(req):
            if stamp is None and self.config.policy == "etlru":
                _warn_unstamped()
            self._stamp = self._stamp if stamp is None else stamp
            turn = turn_of(req, key, self._stamp, hints, self.call_tokens, self._prefills.take(stamp))
            self.record_turn(node_id, turn, str(req.rid))
        else:
            self._prefills.add(req, stamp)
            self._write_first_use(node_id)

    def record_turn(self, node_id: NodeId, turn: Turn, rid: str = "") -> None:
        """A turn was served, and its context ends at that node; the policy in force follows what is learned of it."""
        self._record_later(node_id, turn, rid)

    def record_prefill(self, node_id: NodeId, turn: Turn) -> None:
        """What a conversation will go on with was prefilled, and ends at that node."""
        self._record_later(node_id, turn, is_made_ahead=True)

    def _record_later(self, node_id: NodeId, turn: Turn, rid: str = "", *, is_made_ahead: bool = False) -> None:
        if self.learner is None:
            return
        try:
            is_leaf = not self.has_children(node_id)
            self._unrecorded.add(ServedTurn(node_id, turn, rid, is_leaf, is_made_ahead=is_made_ahead))
            if is_made_ahead or len(self._unrecorded) > LEAST_RECORDED:  # it may be a later step that records it
                self._write_first_use(node_id)
        except Exception as error:
            self.breaker.trip("to look up who continues a turn", error)
        if not (self.learns_later or self._has_steps):
            self.record_served()
            self._learn_due(a_slice=False)

    def record_served(self, most: int | None = None) -> None:
        """Record the turns that were served, or the earliest of them, and put in force what their clients say."""
        for served in self._unrecorded.take(most):
            learner = self.learner
            if learner is None:
                continue
            try:
                conversation = self._record(learner, served)
                if conversation is not None and served.node_id is not None:
                    self.write_use(served.node_id, conversation)
                if served.is_last_of_tree and self.explainer is not None:
                    self.explainer.forget_tree()
                if self.learner is learner:  # or the breaker has tripped
                    self._put_in_force(learner.policy)
            except Exception as error:
                self.breaker.trip("to record a turn", error)

    def _record(self, learner: Learner, served: ServedTurn) -> Conversation | None:
        """The conversation that it belongs to, as of now; None: what was made ahead belongs to none."""
        if served.is_made_ahead:
            return learner.record_prefill(served.turn)
        threshold, in_force = self.policy.threshold, learner.in_force
        conversation = learner.record_turn(served.turn, served.is_leaf, self._held, learns_later=True)
        if served.is_back:
            learner.mark_queued(conversation)
        if served.is_over:
            learner.end_conversation(conversation)
        if self.explainer is not None:
            self.explainer.resize(learner.room)
            self.explainer.record_turn(served.rid, served.turn, conversation, threshold, in_force)
        return conversation

    @property
    def _held(self) -> int:
        """Tokens of the pool that are neither free nor can be evicted: running requests hold them.

        SGLang forms batches by the same sum, so ranks that differ in it form different ones anyway.
        """
        left: int = self.cache._component_available_size(self.component_type) + self.cache.full_evictable_size()
        return self._pool_size - left

    def forget_nodes(self) -> None:
        """The tree is emptied: turns that wait to be recorded are of no node of the next one, and no claim is left."""
        try:
            if self.learner is not None:
                self.learner.clear_claims()
            if self._unrecorded:
                self._unrecorded.forget_nodes()
            elif self.explainer is not None:
                self.explainer.forget_tree()
        except Exception as error:
            self.breaker.trip("to forget what was cached", error)

    def leave_uses(self, node_id: NodeId, left_id: NodeId) -> None:
        """A node, or its tail, is evicted: turns of it that wait to be recorded are of what is left."""
        self._unrecorded.leave(node_id, left_id)

    def begin_step(self) -> None:
        """A step of a scheduler begins: the turns that are served in it are recorded at its end, or later."""
        self.learns_later = self._has_steps = True

    def end_step(self) -> None:
        """The step ends: some turns that wait are recorded. If many wait for an idle server, some are learned from."""
        self.learns_later = False
        if self._unrecorded:
            self.record_served(self._unrecorded.in_a_step)
        self._learn_due(a_slice=True)

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of a scheduler, or of what plays one."""
        self.begin_step()
        try:
            yield
        finally:
            self.end_step()

    @contextmanager
    def learning_later(self) -> Iterator[None]:
        """Where there are no steps: turns that are served meanwhile are recorded, and learned from, at the end."""
        if self.learns_later:  # within a step: at the end of that
            yield
            return
        self.learns_later = True
        try:
            yield
        finally:
            self.learns_later = False
            self.record_served()
        self._learn_due(a_slice=False)

    @property
    def has_work(self) -> bool:
        """Whether turns wait for an idle moment, to be recorded, learned from or explained."""
        return self.learns_when_idle and bool(self._unrecorded or self._unlearned or self._unreplayed)

    def work_when_idle(self) -> None:
        """No batch is there to run: record some turns that wait, or else learn from a slice of them, or explain one."""
        if self._unrecorded:
            self.record_served(self._unrecorded.in_a_step)
        elif self._unlearned or self.explainer is None:
            self.learn(a_slice=True)
        else:
            self.explainer.replay(a_slice=True)

    @property
    def _unlearned(self) -> int:
        return 0 if self.learner is None else self.learner.unlearned

    @property
    def _unreplayed(self) -> int:
        return 0 if self.explainer is None else self.explainer.unreplayed

    def _learn_due(self, *, a_slice: bool) -> None:
        """Do what cannot wait for an idle moment: a slice of it, or all there is."""
        most = _MOST_UNLEARNED if self.learns_when_idle and a_slice else 0
        if self._unlearned > most:
            self.learn(a_slice=a_slice)
        if self.explainer is not None and self._unreplayed > most:
            self.explainer.replay(a_slice=a_slice)

    def learn(self, *, a_slice: bool = False) -> None:
        """Learn from the turns that were recorded, or from a slice of them, and put in force what that says."""
        if self.learner is None:
            return
        before = self.learner.in_force
        try:
            turns = self.learner.learn(a_slice=a_slice)
            if self.learner.in_force != before:
                self._say_in_force(self.learner.in_force, "from now on")
            self._put_in_force(self.learner.policy)
            if not turns:
                return
            self.renew_prices()
            if self.state is not None:
                self.state.count_turns(self.learner, turns)
        except Exception as error:
            self.breaker.trip("to learn from a turn", error)

    def _say_in_force(self, name: str, since: str) -> None:
        doing = "dry run: would evict" if self.config.dry_run else "evicting"
        logger.info("radix_tlru: %s by %s %s", doing, name, since)

    def save_state(self) -> None:
        """The server shuts down: save what was learned, if it is kept, unless it may be broken."""
        self.record_served()
        if self.state is not None and self.learner is not None:
            self.state.close(self.learner)


def component_for(
    config: Config, base: type[LearningComponent], state: StateKeeper | None = None
) -> type[LearningComponent]:
    """The component class to register for ``ComponentType.FULL`` so that a cache follows ``config``."""
    return type(base.__name__, (base,), {"config": config, "state": state, "__doc__": base.__doc__})


@cache
def _warn_unstamped() -> None:
    """Once: etlru learns without time, and is not what it could be."""
    logger.warning("radix_tlru: requests come without a stamp, so etlru does not see time pass between turns")
