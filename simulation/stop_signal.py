"""Tells the clients of a simulation to stop, whatever they wait for."""

import asyncio


class StopSignal(asyncio.Event):
    async def is_set_within(self, duration_s: float) -> bool:
        """Wait for so long, or until the signal is given; whether it is given."""
        try:
            async with asyncio.timeout(duration_s):
                await self.wait()
        except TimeoutError:
            return False
        return True
