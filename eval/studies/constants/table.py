"""The tuned constants of the package, as data, and those numbers that are no constants to tune."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

PACKAGE = "radix_tlru"

Scale = Literal["value", "odds", "ratio"]
"""What is halved and doubled: the value, the odds p / (1 − p) of a share, or the logarithm of a ratio."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A tuned constant: a number, or a tuple of numbers that are changed together."""

    module: str  # below the package
    name: str
    unit: str
    does: str
    scale: Scale = "value"
    policy: str = "etlru"  # under which it is measured
    unmeasured: str = ""
    """Why ``--measure`` leaves it out; empty: it is measured."""

    @property
    def key(self) -> str:
        """``policy.order.REPRICED``."""
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        """Its value in the package as it is now."""
        return getattr(importlib.import_module(f"{PACKAGE}.{self.module}"), self.name)


def changed_value(value: Any, factor: float, scale: Scale) -> Any:
    """The value at ``factor`` times what it is; of a tuple, each of its numbers. A whole number stays one, at least 1.

    >>> changed_value(500, 0.5, "value"), changed_value((0.0, 2.0), 2, "value")
    (250, (0.0, 4.0))
    >>> round(changed_value(0.9, 0.5, "odds"), 3), round(changed_value(1.1, 2, "ratio"), 2)
    (0.818, 1.21)
    """
    if isinstance(value, tuple):
        changed = [changed_value(each, factor, scale) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    if scale == "odds":
        odds = factor * value / (1.0 - value)
        return odds / (1.0 + odds)
    if scale == "ratio":
        return value**factor
    return max(round(value * factor), 1) if isinstance(value, int) else value * factor


_LIVE = "ξ is pinned here; it follows the prefills of a live server"
_HINTS = "no trace has hints"
_ALONE = "requests come one after the other here, and none holds anything beside another"

CONSTANTS = (
    Constant("config", "START_THRESHOLD", "tokens", "ξ before enough prefills were seen", unmeasured=_LIVE),
    Constant("config", "DEFAULT_TTFT_SLO_MS", "ms", "the TTFT objective if none is given", unmeasured=_LIVE),
    Constant("config", "DEFAULT_NEXT_PROMPT", "tokens", "Q̂ before enough prompts were seen", policy="tlru"),
    Constant("config", "MAX_CHUNK", "tokens", "of the default trim chunk, at most"),
    Constant("config", "CHUNKS_IN_POOL", "chunks", "trim chunks of a pool: a chunk is 1/CHUNKS_IN_POOL of it"),
    Constant("config", "MIN_POOL_FOR_CHUNKS", "tokens", "a smaller pool is trimmed page by page"),
    Constant("policy.monotone_queue", "_COMPACT_AFTER", "entries", "taken off a queue before its memory is reused"),
    Constant("policy.entries", "_ADDED", "entries", "added from one look for old ones to the next"),
    Constant("policy.entries", "_SWEPT", "entries", "that are looked at then"),
    Constant("policy.entries", "_QUEUES", "queues", "in which they are"),
    Constant("policy.entries", "_SLACK", "entries", "old entries kept before they are dropped"),
    Constant("policy.entries", "_FRONTS", "buckets", "whose first entries a turn looks at"),
    Constant("policy.entries", "_OFF_A_FRONT", "entries", "old ones taken off such a bucket, at most"),
    Constant("policy.order", "_MOST_PENDING", "leaves", "that wait for an entry, at most"),
    Constant("policy.order", "REPRICED", "leaves", "repriced in a turn"),
    Constant("policy.order", "_LOOKS", "entries", "that a look for leaves to reprice meets"),
    Constant("policy.pricings", "_COMPARED", "policies", "whose prices are compared, the newest"),
    Constant("policy.order", "CORRECTED", "leaves", "repriced at a decision as their price was too low"),
    Constant("policy.order", "CORRECTED_IN_A_TURN", "leaves", "repriced at all decisions of a turn for that"),
    Constant("policy.order", "_AHEAD", "times", "the last victim's cost, from which groups last"),
    Constant("policy.order", "_AHEAD_AGAIN", "times", "a price that was too low, from which groups last"),
    Constant("objective.calibration", "EVERY", "batches", "from one estimate of ξ to the next", unmeasured=_LIVE),
    Constant("objective.prefill_latency", "_GROUP_OF", "prefills", "of about a size, at least", unmeasured=_LIVE),
    Constant("objective.prefill_latency", "_ENOUGH_NEAR", "prefills", "that say how late one is", unmeasured=_LIVE),
    Constant("objective.prefill_latency", "_STALLED", "times", "the usual time: it was stalled", unmeasured=_LIVE),
    Constant("learning.age_bands", "SPANS", "s", "ages between which a turn's features count alike"),
    Constant("learning.age_bands", "_FIRST_S", "s", "age at which the second band of hazards begins"),
    Constant("learning.conversations", "_EARLY", "share", "of a path; who shares less left it early", "odds"),
    Constant("learning.known_conversations", "_MOST_REMEMBERED", "conversations", "recognised when they return"),
    Constant("learning.endings", "_EVERY", "answers", "from one count of frequent endings to the next"),
    Constant("learning.endings", "_FREQUENT", "share", "of answers that makes an ending a class of its own"),
    Constant("learning.endings", "_MOST", "endings", "that are told apart"),
    Constant("learning.endings", "_NEARLY_ALL", "share", "of answers from which on a last token tells nothing", "odds"),
    Constant("learning.guard", "_ERRORS", "std. err.", "added to what a candidate is worse than lru by"),
    Constant("learning.guard", "_CLEAR_ERRORS", "std. err.", "by which more turns must prefill less to replace lru"),
    Constant("learning.guard", "_EVERY", "turns", "from one look at the shadows to the next"),
    Constant("learning.guard", "_FIRST", "turns", "before the first look"),
    Constant("learning.guard", "_GAIN", "share", "by which a candidate must be better to take over"),
    Constant("learning.guard", "_LATE", "turns", "the newest, in which a candidate must not be worse than lru"),
    Constant("learning.guard", "_RARE_ERRORS", "std. err.", "of p99 by which one in force is worse and stays"),
    Constant("learning.guard", "_TOLERANCE", "share", "by which a candidate may be worse than lru"),
    Constant("learning.guard", "_WINDOW", "turns", "of the shadows that a candidate is judged by"),
    Constant("learning.hazard_model", "_BASE_PRIOR", "returns", "that weigh as much as the band before"),
    Constant("learning.hazard_model", "_EFFECT_PRIOR", "returns", "that weigh as much as the prior of an effect"),
    Constant("learning.hazard_model", "_TOO_FEW", "returns", "expected, below which a category tells no spread"),
    Constant("learning.hazard_model", "_RECENCY", "share", "hazard times age before anything was seen"),
    Constant("learning.hazard_model", "_SWEEPS", "times", "that every effect is set anew in a fit"),
    Constant("learning.last_users", "_MOST_REMEMBERED", "places", "of paths, of which the last user is known"),
    Constant("learning.last_users", "_PARTS", "places", "from one step of a path to the next"),
    Constant("learning.learner", "_ENOUGH", "turns", "before which no shadow caches are set up"),
    Constant("learning.learner", "_PATIENCE_S", "s", "for which a request counts as queued"),
    Constant("learning.learner", "_PROMPTS_EVERY", "turns", "from one look at the lengths of prompts to the next"),
    Constant("learning.learner", "_MOST_STEPS", "steps", "of learning that a slice is, at most"),
    Constant("learning.learner", "_MOST_WAITING", "turns", "that may wait to be learned from", unmeasured=_ALONE),
    Constant("learning.learner", "_HELD_TURNS", "turns", "over which is averaged what is held", unmeasured=_ALONE),
    Constant("learning.learner", "_SIZES", "sizes", "of shadow caches, by what is held", unmeasured=_ALONE),
    Constant("learning.learner", "_SLICES", "parts", "of the steps of learning that wait, of which a slice is one"),
    Constant("learning.candidates", "_TAIL_WEIGHT", "share", "w of the candidate that sees a threshold", "odds"),
    Constant("learning.least_tel", "_HALF_LIFE", "turns", "after which what a turn cost counts half", policy="tlru"),
    Constant("learning.prefix_index", "_MOST_HASHED", "steps", "hashed to look up a context, at most"),
    Constant("learning.prefix_index", "STEPS", "tokens", "lengths at which a context is recognised"),
    Constant("learning.prompt_lengths", "_CHANGE", "share", "of a quantile of Q; a smaller change is not made"),
    Constant("learning.prompt_lengths", "_LENGTHS", "tokens", "of context that divide conversations into kinds of Q"),
    Constant("learning.prompt_lengths", "_LEVELS", "share", "quantiles of Q that are price levels", "odds"),
    Constant("learning.prompt_lengths", "_REMEMBERED", "lengths", "of the latest prompts that Q is learned from"),
    Constant("learning.prompt_lengths", "_STRENGTH", "lengths", "of a kind that count as much as those of all kinds"),
    Constant("learning.prompt_lengths", "_TURNS", "turns", "that divide conversations into kinds of Q"),
    Constant("learning.refits", "_CHECKED", "turns", "from one look at whether predictions hold to the next"),
    Constant("learning.refits", "_FEWEST", "turns", "from one fit to the next, at least"),
    Constant("learning.refits", "_FIRST", "turns", "before the first fit"),
    Constant("learning.refits", "_FOR_KINDS", "turns", "for each kind whose index is computed ahead, at least"),
    Constant("learning.refits", "_GROWTH", "ratio", "1/_GROWTH more turns: time for another fit"),
    Constant("learning.refits", "_INDEXES", "kinds", "whose index is computed in a slice of a fit"),
    Constant("learning.refits", "_KINDS", "kinds", "of turns whose index is computed ahead, at most"),
    Constant("learning.refits", "_MOST", "turns", "from one fit to the next, at most"),
    Constant("learning.refits", "_SMALL", "turns", "up to which a turn does four slices of a fit"),
    Constant("learning.reliability", "_DEVIATIONS", "deviations", "of returns that are left to chance"),
    Constant("learning.reliability", "_LEAST", "returns", "whose deviation is left to chance at least"),
    Constant("learning.reliability", "_PARTS", "slices", "in which returns are predicted"),
    Constant("learning.reliability", "_RATIO", "ratio", "of returns to those predicted beyond which a fit is due"),
    Constant("learning.return_model", "_FARTHEST", "steps", "of age that a leaf may keep a rate that is too low"),
    Constant("learning.return_model", "_QUEUED_RATE", "1/s", "return rate of what a queued request needs"),
    Constant("learning.reuse", "_MOVES", "share", "by which one return moves what is known of repeated answers"),
    Constant("learning.reuse", "_NEARLY_ALL", "share", "of returns that repeat answers, taken for all", "odds"),
    Constant("learning.selector", "_FEWEST", "contexts", "that fit into a shadow cache"),
    Constant("learning.selector", "_TOKENS_FOR_ONE", "tokens", "of contexts, of which a shadow serves one at least"),
    Constant("learning.selector", "_SIZED_EVERY", "turns", "between two looks at how many contexts fit"),
    Constant("learning.records", "_COMMON", "uses", "from which on a prefix is more than branches of one chat share"),
    Constant("learning.shadow_cache", "_VICTIMS", "leaves", "that a step of a shadow cache evicts, at most"),
    Constant("learning.shared_prefixes", "_MEMORY", "share", "of a mean wait that the next one leaves", "odds"),
    Constant("learning.shared_prefixes", "MOST_ON_A_PATH", "prefixes", "of a conversation that are looked at"),
    Constant("learning.shared_prefixes", "_MOST_REMEMBERED", "prefixes", "recognised when they are used again"),
    Constant("learning.shared_prefixes", "_RATE", "share", "of one use a mean wait, what a shared prefix is worth"),
    Constant("learning.turn_log", "_ROWS", "turns", "that hazards are learned from"),
    Constant("hints.models", "DEAREST", "ratio", "as many times as dear a hint may make a token", unmeasured=_HINTS),
    Constant("hints.models", "_LEFT_S", "s", "left until a stated return, at which bands begin", unmeasured=_HINTS),
    Constant("hints.quota", "SHARE", "share", "of the pool that may be claimed", "odds", unmeasured=_HINTS),
    Constant("hints.quota", "_SLACK", "entries", "old expiries kept before a rebuild", unmeasured=_HINTS),
)  # fmt: skip

_SENTINEL = "stands for 'none' or 'all': no value lies beyond it"
_MADE_UP = "of conversations that a check of a model asks about: no decision depends on them"
_LABEL = "a number that stands for a kind, and is compared for equality only"

FORMATS = {
    "config.FEWEST_CHUNKS_IN_POOL": "limit of a flag: a larger trim chunk is refused",
    "config.MIN_CHUNK_LIMIT": "limit of a flag: a larger trim chunk is refused",
    "config._MOST_TOKENS": "limit of a flag: more tokens are refused",
    "policy.asked_model.LATER": "times that the check of a model asks about: no decision depends on them",
    "policy.models._FOREVER": _SENTINEL,
    "policy.monotone_queue._LEAST": _SENTINEL,
    "policy.order._NO_ENTRY": _SENTINEL,
    "policy.preview._ALL": _SENTINEL,
    "policy.preview._JUDGED": "leaves that a look judges: it says what would go, and nothing goes by it",
    "policy.preview._LOOKS": "entries that such a look meets",
    "policy.sharded_dict.SHARDS": "parts of a dictionary: what is in it is the same with any number of them",
    "learning.prefix_index.DEPTH_BITS": "format of a key",
    "learning.age_bands.AGES": "computed from _FIRST_S",
    "learning.age_bands.BANDS": "computed from _FIRST_S",
    "learning.age_bands.SPAN_OF": "computed from SPANS",
    "learning.age_bands.MIDDLES": "computed from BANDS",
    "learning.age_bands._HALF_OCTAVES": "bands of ages, which end at half a day",
    "learning.gittins._WIDTHS": "computed from BANDS",
    "learning.guard._PERCENTILES": "those that operators look at",
    "learning.hazard_model._ALL_EDGES": _SENTINEL,
    "learning.last_users._FIRST": "computed from STEPS",
    "learning.return_model._LOWEST": _SENTINEL,
    "learning.return_model._RATES": "computed from _STEPS",
    "learning.return_model._STEPS": "rates that differ by less than an eighth are one group, whatever is learned",
    "learning.turn_features.NOTHING_KNOWN": "computed from SIZES",
    "learning.turn_features.SIZES": "categories of each feature, as they are counted below",
    "learning.turn_features._FINISHES": _LABEL,
    "learning.turn_features._FREQUENT": _LABEL,
    "learning.model_check._ADDED": _MADE_UP,
    "learning.model_check._ANSWER": _MADE_UP,
    "learning.model_check._CONVERSATIONS": _MADE_UP,
    "learning.model_check._PAGE": _MADE_UP,
    "learning.model_check._TURNS": _MADE_UP,
    "learning.prompt_lengths._PROBABILITIES": "computed from _LEVELS",
    "learning.prompt_lengths.KINDS": "computed from _TURNS and _LENGTHS",
    "learning.records._ALL": _SENTINEL,
    "learning.return_model._QUEUED": _LABEL,
    "learning.state_file._MODE": "of a file",
    "learning.state_file._MOST_BYTES": "limit of a file: a larger one is refused",
    "learning.state_file._VERSION": _LABEL,
    "learning.reuse._NEVER": _SENTINEL,
    "hints.models._PLAIN": _LABEL,
    "hints.models._PRIORITY": _LABEL,
    "hints.models._KINDS": _LABEL,
    "hints.schema.NEUTRAL": "as in TensorRT-LLM",
    "hints.schema.HIGHEST": "as in TensorRT-LLM",
    "hints.schema.LONGEST_S": "limit of a hint: a longer one is refused",
    "hints.schema.MOST_RANGES": "limit of a hint: more are refused",
    "hints.schema.MOST_TOKENS": "limit of a hint: more are refused",
    "hints.clients._LARGEST_MS": "limit of a hint: a longer one is refused",
    "hints.models.BANDS": "the bounds of TensorRT-LLM's priorities and its neutral one, and what lies evenly between",
    "hints.models._BAND_OF": "computed from BANDS",
}
"""Numbers of the same modules that are not tuned, each with the reason."""
