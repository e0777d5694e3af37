"""From milliseconds to what a policy is judged by: the threshold ξ (tokens).

=================  =============================================  ==================================================
file               its job                                        in → out
=================  =============================================  ==================================================
prefill_latency    how long prefills take                         prefill batches and their times → p95 by size
overhead           what else a first token waits for              first tokens and their times → γ (ms)
calibration        how prefills become ξ                          both, and an objective in ms → ξ
threshold          ξ in force                                     tokens wanted → tokens, in whole pages
=================  =============================================  ==================================================

Everything is counted in events, never in seconds, and nothing is drawn at random: the same input gives the same output
on every rank. Nothing here knows of SGLang; what is measured where is the business of ``radix_tlru.sglang.scheduler``.
"""
