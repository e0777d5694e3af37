"""Studies: one claim each, one command each, whose table says whether it holds.

| file | command | the question |
|---|---|---|
| `tune.py`, `tune_figure.py` | `tune` | which policy, ξ and w should serve this trace? |
| `later.py` | `later` | what is learning worth on the later part of a trace? |
| `queue.py`, `queue_model.py`, `batching.py` | `queue` | what happens to TTFT where requests wait for each other? |
| `queue_check.py` | `queue-check` | does that model say what clients of live servers measured? |
| `rates.py` | `rates` | how far are learned rates from the true ones? |
| `hostile.py` | `hostile` | what can one hostile client do to another tenant? |
| `restart.py` | `restart` | does a server that begins with a state, its own or of others, begin better? |
| `warm.py` | `warm` | what do prompts that are kept warm gain, and what do they cost the others? |
| `ahead.py` | `ahead` | what would prefilling the next prompt ahead gain and cost? |
| `load_back.py` | `load-back` | what would loading from the host before a prompt comes gain and cost? |
| `features.py` | `features` | what is each thing that is known of a turn worth to the learned rates? |
| `constants/` | `constants` | which tuned constants are there, and which of them matter? |
| `paper/` | `paper` | what does the paper report, and what do we find in its setting? |

`figures.py` has the figures that several studies compare.
"""
