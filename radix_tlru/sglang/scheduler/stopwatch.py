"""How long each prefill batch took, as the scheduler's own calls show it.

- Where a device computes in step with the host (a CPU), a batch is done when ``Scheduler.run_batch`` returns.
- On any other device the host waits for the batch in ``Scheduler.process_batch_result``. The batch took from its
  launch, or from when the batch before was done if that was later, until that returns. With overlap scheduling the next
  batch has been launched by then; it cannot have begun.
- With pipeline parallelism the stages work at several batches at once. The times of the first stage count. It has the
  result when the last stage is done: a batch took from its launch until then, on any device. The next chunk of a
  prompt is launched before that. What both took is less than their sum, by ``Stopwatch.overlap_ms``.

So no sample has time in the queue, of decode steps before, or of other batches. Tokenizing and detokenizing are not in
it either: the tokenizer process measures those, and reports them with later requests (``requests.first_tokens``).
"""

from __future__ import annotations

from collections import deque

__all__ = ["Stopwatch"]


class Stopwatch:
    """Times batches, each in ``stages``. Times are in s, of SGLang's clock for launches: ``time.monotonic``."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self.done = 0.0
        """When the device was done with the last batch. Who has one processed that is not timed, decoding, sets it."""
        self.overlap_ms = 0.0
        """How much of the last batch's time the batch that was timed before it was at work, too."""
        self._timed = 0.0  # when that batch was done
        self._returned: deque[tuple[int, float]] = deque(maxlen=4)  # overlap scheduling is one batch ahead

    def run_returned(self, number: int, now: float) -> None:
        """``run_batch`` returns, for the batch of that number: of interest where the device is in step."""
        self._returned.append((number, now))

    def batch_ms(self, number: int, launched: float, now: float, *, in_step: bool) -> float | None:
        """``process_batch_result`` returns: ms that the device was at the batch; None if that cannot be told.

        Args:
            in_step: whether the device was done when ``run_batch`` returned.
        """
        began, done = max(launched, self.done), now
        if self._stages > 1:
            began = launched
            self.overlap_ms = max(self._timed - launched, 0.0) * 1000.0
        elif in_step:
            returned = [at for batch, at in self._returned if batch == number]
            if not returned:
                return None
            began, done = launched, returned[0]
        self.done = self._timed = done
        return (done - began) * 1000.0
