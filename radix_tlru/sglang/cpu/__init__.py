"""SGLang on a CPU without its kernels, for tests and demonstrations: ``SGLANG_PLATFORM=torch_cpu``.

Nothing of the eviction is in here, and no server with a GPU loads more of it than `entry_point.py`.

| file | what SGLang asks a device for |
|---|---|
| `entry_point.py` | whether the platform is wanted at all |
| `platform.py` | the platform itself: its operations, in plain torch |
| `dp.py` | batches of replicas of attention, padded and gathered |
| `host.py` | pinned memory and copies between the tiers of a hierarchical cache |
| `lora.py` | pinned memory of adapters |
| `transfer.py` | KV sent from a prefill server to one that decodes |
| `windows.py` | attention within a sliding window |
"""
