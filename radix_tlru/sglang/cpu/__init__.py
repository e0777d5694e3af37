"""SGLang on a CPU without its kernels, for tests and demonstrations: ``SGLANG_PLATFORM=torch_cpu``.

Nothing of the eviction is in here, and no server with a GPU loads more of it than `entry_point.py`.

===========  ===================================================================
file         what SGLang asks a device for
===========  ===================================================================
entry_point  whether the platform is wanted at all
platform     the platform itself: its operations, in plain torch
dp           batches of data-parallel attention, padded and gathered
host         pinned memory and copies between the tiers of a hierarchical cache
lora         pinned memory of adapters
transfer     KV sent from a prefill server to one that decodes
windows      attention within a sliding window
===========  ===================================================================
"""
