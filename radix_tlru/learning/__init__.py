"""Who comes back, when, and with how much: learned from the turns that a server has served, while it serves them.

| file | its job | in → out |
|---|---|---|
| `learner.py` | all of it together | turns → the policy in force |
| `conversations.py`, `contexts.py` | who is who | a turn's tokens → the conversation that it continues |
| `hazards.py` | how soon one returns | silences and returns → hazards by age → an index |
| `forecast.py` | whether that is to be believed | hazards, returns → foretold, seen |
| `prefixes.py` | what many begin with | first turns → how soon a template is used again |
| `endings.py` | how an answer ended | its last tokens → a class |
| `prompts.py` | how long the next prompt is | what prompts added → a distribution of Q |
| `said_again.py` | what no later prompt has | thoughts, calls written otherwise → λ = 0 |
| `returns.py` | rates for the order | hazards of a leaf's conversation → λ |
| `shadow.py` | what another policy would have cost | the same turns → TEL, p95 |

Nothing here knows of SGLang or of a clock: time is in stamps that requests carry, so all ranks learn alike.
"""
