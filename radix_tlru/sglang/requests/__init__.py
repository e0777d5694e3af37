"""From the request of a client to the turn that is learned from.

============  =====================================  =======================================================
file          its job                                in → out
============  =====================================  =======================================================
metadata      what travels with a request            client, tokenizer process → every rank
first_tokens  what first tokens took                 requests in flight → reports, with later requests
tool_calls    which tokens begin a call of a tool    ``--tool-call-parser`` → token ids
processors    what logit processors of clients see   parameters with our metadata → without
ahead         what is prefilled after an answer      an answer → a request for no token
turns         what the learner is told               a request that was served → ``Turn``
============  =====================================  =======================================================
"""
