"""`python -m eval replay`: conversations against live servers, side by side, and the TTFT that a client measures.

| file | its job | in → out |
|---|---|---|
| `turns.py` | what is sent: turns, their units, their tokens | – |
| `load.py` | what of a trace is sent, and what each turn waits for | a trace → conversations of turns |
| `shrink.py` | shorter contexts of the same shape | requests → requests |
| `prompts.py` | the prompt of each turn, with the real answers | turns, results → `Request` |
| `schedule.py` | when each turn is sent | turns, ends of answers → turns that are due |
| `turnstile.py` | which server's turn it is | players, seconds → one player at a time |
| `clock.py` | the clock of a run, which stands still while it is another server's turn | – |
| `client.py` | one request, with the clock at the client | tokens or messages → `RequestResult` |
| `play.py` | one run of a load | a load, a server → results as they come in |
| `probe.py` | warm-up, and how fast the machine is now | a server → ms |
| `arms.py` | the servers that are compared, and their flags | names, flags, URLs → `Arm` |
| `hosts.py` | how the server of an arm is reached | `Arm` → a running server |
| `facts.py` | what a server says of itself | a running server → `Facts` |
| `rows.py` | what is on the disk, and how a run goes on | results ↔ files |
| `plan.py`, `parts.py` | what is played, and playing it part by part | flags → `Plan`; plan → rows |
| `summary.py`, `table.py` | figures with intervals, and their table | rows → `ArmSummary` → table |
| `predict.py` | what the simulator says of the same requests | rows, α and β → predicted p95 |
| `figures.py`, `page.py` | the figures and the page | all of these → HTML |
| `command.py` | flags, and what is reported | – |
"""
