"""``radix-tlru dashboard``: a Grafana dashboard of what a server evicts, what that costs, and what it would cost else.

Built with Grafana's own SDK, as JSON that Grafana imports or provisions. The queries are of our metrics
(``radix_tlru.sglang.metrics``) and of SGLang's own, over counters wherever something is counted. When somebody should
be told is in ``alerts``.

A metric that a server calls ``sglang:name`` is ``sglang_name`` in a Prometheus 2 that asks for OpenMetrics, and
``sglang:name`` in others. So queries ask for ``{__name__=~"sglang[:_]name"}``.
"""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh
from grafana_foundation_sdk.models.units import Milliseconds, PercentUnit, Seconds, Short

from radix_tlru.learning.guard import NUMBERED_REASONS

__all__ = ["PANELS", "Panel", "Query", "dashboard"]

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

_WIDTH, _HEIGHT = 8, 8  # of a panel, on a grid of 24 columns


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression; ``$__rate_interval`` and ``$instance`` are Grafana's to fill in."""

    expression: str
    legend: str  # with labels as {{label}}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard."""

    title: str
    text: str  # what a reader should make of it
    unit: str  # as Grafana names it
    queries: tuple[Query, ...]


def _now(metric: str, *labels: str) -> str:
    named = f'__name__=~"{metric.replace(":", "[:_]")}"'
    return "{" + ",".join((named, 'instance=~"$instance"', *labels)) + "}"


def _rate(metric: str) -> str:
    return f"rate({_now(metric)}[$__rate_interval])"


def _ratio(part: str, whole: str) -> str:
    return f"sum({_rate(part)}) / (sum({_rate(whole)}) > 0)"


def _by_policy(part: str, whole: str) -> str:
    """A ratio for each policy in the shadow caches; the whole has no such label, as all of them serve the same."""
    part, whole = (_rate(f"sglang:tlru_shadow_{name}_total") for name in (part, whole))
    return f"sum by (policy) ({part}) / scalar(sum({whole}) > 0)"


def _quantile(share: float, metric: str) -> Query:
    return Query(f"histogram_quantile({share}, sum by (le) ({_rate(f'{metric}_bucket')}))", f"p{share * 100:g}")


_EVICTIONS = "sglang:eviction_duration_seconds"

PANELS = (
    Panel(
        "Time to first token",
        "What clients wait for. ξ is to keep p95 and p99 within the objective.",
        Seconds,
        tuple(_quantile(share, "sglang:time_to_first_token_seconds") for share in (0.5, 0.95, 0.99)),
    ),
    Panel(
        "Requests beyond ξ",
        "Share of requests with more uncached tokens than the threshold in force.",
        PercentUnit,
        (Query(_ratio("sglang:tlru_violations_total", "sglang:tlru_requests_total"), "beyond ξ"),),
    ),
    Panel(
        "TEL of a request",
        "Tail excess latency: uncached tokens beyond the threshold, the mean of all requests.",
        Short,
        (Query(_ratio("sglang:tlru_excess_tokens_total", "sglang:tlru_requests_total"), "tokens"),),
    ),
    Panel(
        "Policy in force",
        "1 for the policy that evicts; in a dry run for the one that would. After a fault lru evicts, until a restart.",
        Short,
        (
            Query(_now("sglang:tlru_policy"), "{{policy}}"),
            Query(_now("sglang:tlru_dry_run"), "dry run"),
            Query(_now("sglang:tlru_fallen_back"), "after a fault"),
        ),
    ),
    Panel(
        "Why not in force",
        "The figure in which a policy is worse than lru, by its number, that what it wins may be chance, or that it "
        "was worse of late. "
        f"{NUMBERED_REASONS}.",
        Short,
        (Query(_now("sglang:tlru_refused"), "{{policy}}"),),
    ),
    Panel(
        "TEL in the shadow caches",
        "Of the same sampled requests under each policy. To be held against each other, not against what was served.",
        Short,
        (Query(_by_policy("excess_tokens", "requests"), "{{policy}}"),),
    ),
    Panel(
        "Beyond ξ in the shadow caches",
        "Share of the same sampled requests. In force: whichever was, or in a dry run would have been.",
        PercentUnit,
        (Query(_by_policy("violations", "requests"), "{{policy}}"),),
    ),
    Panel(
        "Hit ratio in the shadow caches",
        "Cached tokens of the prompts of the same sampled requests.",
        PercentUnit,
        (Query(f"1 - {_by_policy('uncached_tokens', 'prompt_tokens')}", "{{policy}}"),),
    ),
    Panel(
        "Hit ratio",
        "Cached tokens of all prompt tokens.",
        PercentUnit,
        (Query(_ratio("sglang:cached_tokens_total", "sglang:prompt_tokens_total"), "cached"),),
    ),
    Panel(
        "Threshold ξ",
        "Uncached tokens that meet the objective, in force; and of how many recent prefills it is learned.",
        Short,
        (
            Query(_now("sglang:tlru_threshold_tokens"), "ξ, tokens"),
            Query(_now("sglang:tlru_threshold_samples"), "prefills"),
        ),
    ),
    Panel(
        "Prefill near ξ",
        "The line that ξ comes from: time without tokens, time of 1,000 tokens, what else a first token waits for.",
        Milliseconds,
        (
            Query(_now("sglang:tlru_beta_ms"), "β"),
            Query(f"1000 * {_now('sglang:tlru_alpha_ms_per_token')}", "1,000 α"),
            Query(_now("sglang:tlru_overhead_ms"), "overhead"),
        ),
    ),
    Panel(
        "w",
        "The weight in force: how much a token counts whether or not its request is in the tail.",
        Short,
        (Query(_now("sglang:tlru_median_weight"), "w"),),
    ),
    Panel(
        "Evicted tokens",
        "By phase. tel_safe: at no cost to the tail, only under a policy with a threshold: tlru, etlru with w < 1. "
        "lru: every other token. From the device, and dropped from the host tier.",
        Short,
        (
            Query(f"sum by (phase) ({_rate('sglang:tlru_evicted_tokens_total')})", "{{phase}} / s"),
            Query(f"sum by (phase) ({_rate('sglang:tlru_host_dropped_tokens_total')})", "host {{phase}} / s"),
        ),
    ),
    Panel(
        "Time of an eviction",
        "How long a call of the scheduler to make room takes.",
        Seconds,
        tuple(_quantile(share, _EVICTIONS) for share in (0.5, 0.99)),
    ),
    Panel(
        "Eviction's share of the time",
        "Of the scheduler's time, what evictions take; of several, the mean.",
        PercentUnit,
        (
            Query(  # replicas of --dp-size are one series of SGLang's; of ours each has its own
                f"sum by (instance) ({_rate(f'{_EVICTIONS}_sum')}) "
                f"/ count by (instance) ({_now('sglang:tlru_dry_run')})",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "What could go",
        "TEL-safe tokens, only under a policy with a threshold: tlru, etlru with w < 1; and evictable leaves. No leaf: "
        "nothing is left to evict.",
        Short,
        (
            Query(_now("sglang:tlru_over_budget_tokens"), "TEL-safe, tokens"),
            Query(_now("sglang:tlru_evictable_leaves"), "leaves"),
        ),
    ),
    Panel(
        "Returns, predicted and seen",
        "Of conversations whose return is predicted. They should agree in every band of silence.",
        Short,
        (
            Query(f"sum by (silent) ({_rate('sglang:tlru_expected_returns_total')})", "predicted, {{silent}}"),
            Query(f"sum by (silent) ({_rate('sglang:tlru_returns_total')})", "seen, {{silent}}"),
        ),
    ),
    Panel(
        "Answers that come back",
        "Conversations that returned, by whether the prompt repeats the last answer as it was cached.",
        Short,
        (Query(f"sum by (answer) ({_rate('sglang:tlru_continued_total')})", "{{answer}} / s"),),
    ),
    Panel(
        "Next victim",
        "Of the path that goes next: what is cached of it, and what stays once all has gone that costs the same.",
        Short,
        (
            Query(_now("sglang:tlru_next_victim_cached_tokens", 'position="1"'), "cached"),
            Query(_now("sglang:tlru_next_victim_keep_tokens", 'position="1"'), "keeps"),
        ),
    ),
    Panel(
        "Splits",
        "Leaves that were split so that only their tail was evicted.",
        Short,
        (Query(f"sum({_rate('sglang:tlru_splits_total')})", "splits / s"),),
    ),
)
"""What the dashboard shows, in rows of three."""


def dashboard() -> str:
    """The dashboard as JSON, with a line feed at its end. The same on every call."""
    built = (
        Dashboard("SGLang: tail-optimised eviction")
        .uid("radix-tlru")
        .description("What radix-tlru evicts, what that costs, and what other policies would cost.")
        .tags(["sglang", "radix-tlru"])
        .time("now-1h", "now")
        .refresh("10s")
        .readonly()
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            QueryVariable("instance")
            .label("Instance")
            .datasource(_SOURCE)
            .query('label_values({__name__=~"sglang[:_]tlru_policy"}, instance)')
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .all_value(".*")
            .multi(True)
        )
    )
    for panel in PANELS:
        built.with_panel(_time_series(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _time_series(panel: Panel) -> TimeSeries:
    legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    made = TimeSeries().title(panel.title).description(panel.text).unit(panel.unit).datasource(_SOURCE)
    made = made.span(_WIDTH).height(_HEIGHT).legend(legend.show_legend(True).calcs([]))
    for number, query in enumerate(panel.queries):
        target = Dataquery().expr(query.expression).legend_format(query.legend).ref_id(chr(ord("A") + number))
        made.with_target(target)
    return made
