"""What a client may say of its conversation, how much of it is believed, and what it does.

=======  =========================================  =====================================
file     its job                                    in → out
=======  =========================================  =====================================
schema   our own fields, types and bounds           JSON of a client → ``Hints``
clients  fields of SGLang, TensorRT-LLM, Dynamo     fields of a request → ``Hints``
quota    no client can pin memory                   hints, tokens, time → those believed
models   what believed hints change                 policy → the same policy, taking hints
=======  =========================================  =====================================
"""
