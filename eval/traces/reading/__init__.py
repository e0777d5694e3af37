"""What the readers of all formats share.

| module | its job | in → out |
|---|---|---|
| `options.py` | what a caller may choose | flags → `Options` |
| `notes.py` | what a reader did to the data, and what it left out | words → `Note` |
| `files.py` | opens files, folders and data sets | path or name → `Record` |
| `records.py` | one record in its schema, errors with file, line and field | bytes → a struct |
| `names.py` | which conversations have the same id and are others | ids, times → names |
| `times.py` | times in any unit | number or text → seconds |
| `blocks.py` | ids of blocks become ids of prefixes; sizes of blocks | `hash_ids` → units |
| `chats.py` | conversations in text | messages → requests |
| `agent_log.py` | sessions of local agents with exact usage | calls → requests |
| `lengths.py` | traces of lengths alone: contexts are rebuilt | lengths → requests |

Nothing here knows a format.
"""
