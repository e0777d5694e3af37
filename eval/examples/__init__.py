"""Short programs to start from, each run by a test.

| file | what it shows |
|---|---|
| `eviction.py` | one eviction, through the public API of the package alone |
| `tool_calls.py` | a return model of one's own: a program that called a tool returns soon |
| `goes_on.py` | another, that reads: does this conversation go on, by the last message? |
| `fit_goes_on.py` | fits the classifier of that to a chat trace |
"""
