"""A small busy simulation that prints its trace hash: `python chatter.py SEED`.

It uses what could differ from run to run: sets of strings, task groups that cancel, generators,
jobs, connections, kills and power losses.
"""

import asyncio
import contextlib
import sys

from suwi.env import Env
from suwi.sim import Machine, Simulation

HOSTS = ("b1", "b2", "b3")


async def _serve(env: Env, host: str) -> None:
    env.disk.make_dirs("/data")
    log = env.disk.open("/data/log", create=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                log.pwrite(line, log.size())
                if env.random.below(3) == 0:
                    await asyncio.get_running_loop().run_in_executor(None, log.sync)
                writer.write(f"{host} {env.clock.now_ms()} {env.random.uuid()} ".encode() + line)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, 9092)
    async with server:
        await server.serve_forever()


async def _talk(simulation: Simulation, number: int) -> list[bytes]:
    lines = []
    for turn in range(6):
        host = simulation.workload.choice(HOSTS)
        try:
            async with asyncio.timeout(3):
                reader, writer = await asyncio.open_connection(host, 9092)
                try:
                    writer.write(f"{number} {turn}\n".encode())
                    lines.append(await reader.readline())
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            lines.append(type(error).__name__.encode())
        await asyncio.sleep(simulation.workload.uniform(0, 0.1))
    return lines


async def _fail_soon() -> None:
    await asyncio.sleep(0.2)
    raise ValueError("as planned")


async def _disturb(machines: dict[str, Machine], simulation: Simulation) -> None:
    for _ in range(8):
        await asyncio.sleep(simulation.faults.uniform(0, 0.3))
        machine = machines[simulation.faults.choice(HOSTS)]
        match simulation.faults.below(4):
            case 0:
                machine.kill()
            case 1:
                machine.power_off()
            case 2:
                machine.freeze()
                await asyncio.sleep(0.5)
                machine.thaw()
            case _:
                simulation.network.partition({machine.name}, {*HOSTS, "outside"} - {machine.name})
                await asyncio.sleep(0.5)
                simulation.network.heal()
        if not machine.is_running:
            await asyncio.sleep(0.2)
            machine.spawn(_serve(machine.start(), machine.name))


async def chat(simulation: Simulation) -> list[list[bytes]]:
    machines = {name: simulation.machine(name) for name in HOSTS}
    for name, machine in machines.items():
        machine.spawn(_serve(machine.start(), name))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_fail_soon())
            for _ in range(5):
                group.create_task(asyncio.sleep(9))
    except* ValueError:
        pass
    disturbing = asyncio.create_task(_disturb(machines, simulation))
    lines = await asyncio.gather(*(_talk(simulation, number) for number in range(5)))
    await disturbing
    return lines


def main(seed: int) -> str:
    simulation = Simulation(seed)
    lines = simulation.run(chat(simulation))
    return f"{simulation.trace_hash} {simulation.loop.trace.events} {lines}"


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
