"""What the readers of all formats share.

| module | its job | in → out |
|---|---|---|
| `reader.py` | what a format is: its name, its test, its function | – |
| `options.py` | what a caller may choose | flags → `Options` |
| `notes.py` | what a reader did to the data, and what it left out | words → `Note` |
| `files.py`, `tables.py` | opens files, folders and data sets; rows of Parquet and Arrow | path or name → `Record` |
| `records.py` | one record in its schema, errors with file, line and field | bytes → a struct |
| `refusals.py` | why a record is refused: field, value, what is allowed | an error → one line |
| `names.py` | which conversations have the same id and are others | ids, times → names |
| `times.py` | times in any unit | number or text → seconds |
| `clock.py` | times of one log, from 1970 or from a start | requests → requests on one clock |
| `blocks.py` | ids of blocks become ids of prefixes; sizes of blocks | `hash_ids` → units |
| `chats.py`, `content.py` | conversations in text; what a message says | messages → requests |
| `prompts.py`, `tokenizer.py` | prompts that are one text; how tokens are counted | text or tokens → units |
| `bodies.py`, `api.py` | calls of the APIs of OpenAI and Anthropic: what is read; all of them | rows → calls |
| `runs.py` | runs of SWE-agent as calls | a run → rows |
| `streams.py` | answers that were logged as they were streamed | chunks → a response |
| `fitted.py` | lengths of texts fit the tokens that a server counted | estimates, counts → paths |
| `calls.py` | which call continues which | calls → requests |
| `log_line.py` | a line of a server's log | text → a request, or nothing |
| `collected.py` | such lines in fields of JSON, and in parts | records → records |
| `agent_log.py` | sessions of local agents with exact usage | calls → requests |
| `lengths.py` | traces of lengths alone: contexts are rebuilt | lengths → requests |

Nothing here knows a format.
"""
