"""Faults of a cluster of processes: of a broker, its links and disk, of ZooKeeper, and restarts."""

from chaos.faults import Kind, nothing
from chaos.process_cluster import ProcessCluster as Target

# The session has a timeout of 3 s.
BEYOND_SESSION_S = (3.5, 7.0)


def _zookeeper(*modes: str, hold_s: tuple[float, float] = (1.0, 6.0), **more: bool) -> Kind:
    def kill(cluster: Target, _broker: int) -> None:
        cluster.kill_zookeeper(modes)

    return Kind(kill, Target.restart_all, hold_s, has_target=False, **more)


def _paused_zookeeper(mode: str) -> Kind:
    def pause(cluster: Target, _broker: int) -> None:
        cluster.pause_zookeeper(mode)

    return Kind(pause, Target.resume_zookeeper, BEYOND_SESSION_S, has_target=False)


PROCESS_KINDS: dict[str, Kind] = {
    "kill": Kind(Target.kill, Target.restart, (0.1, 3.0)),
    "kill of the controller": Kind(
        Target.kill_controller, Target.restart_all, (0.1, 3.0), has_target=False
    ),
    "pause": Kind(Target.pause, Target.resume, BEYOND_SESSION_S),
    "isolation": Kind(Target.isolate, Target.heal, BEYOND_SESSION_S),
    "one-way cut": Kind(Target.silence, Target.heal, BEYOND_SESSION_S),
    "one-way cut towards the broker": Kind(Target.deafen, Target.heal, BEYOND_SESSION_S),
    "cut between two brokers": Kind(Target.cut_from_one_broker, Target.heal, BEYOND_SESSION_S),
    "cut from ZooKeeper": Kind(Target.cut_from_zookeeper, Target.heal, BEYOND_SESSION_S),
    "one-way cut to ZooKeeper": Kind(Target.silence_to_zookeeper, Target.heal, BEYOND_SESSION_S),
    "one-way cut from ZooKeeper": Kind(Target.deafen_to_zookeeper, Target.heal, BEYOND_SESSION_S),
    "pause of ZooKeeper's follower": _paused_zookeeper("follower"),
    "pause of ZooKeeper's leader": _paused_zookeeper("leader"),
    "loss of ZooKeeper's minority": _zookeeper("follower"),
    "loss of ZooKeeper's leader": _zookeeper("leader"),
    "loss of ZooKeeper's majority": _zookeeper("leader", "follower"),
    "rolling restart": Kind(Target.roll, nothing, (0.0, 0.0), needs_sync=True, has_target=False),
    "slow broker": Kind(Target.slow, Target.heal, (6.0, 10.0)),
    # Meanwhile all replicas are in sync but for what is copied.
    "reassignment": Kind(Target.move_away_and_back, nothing, (0.0, 1.0), needs_sync=True),
    "kill in a reassignment": Kind(
        Target.move_and_kill, Target.restart, (0.1, 3.0), needs_sync=True
    ),
    # Meanwhile another replica must be in sync: the damaged one is discarded and copied again.
    "damaged segment": Kind(Target.damage_segment, nothing, (0.0, 0.0), needs_sync=True),
    "taken port": Kind(Target.take_port, Target.free_port, (0.1, 1.0), needs_sync=True),
    "clock step": Kind(Target.step_clock, Target.step_clock_back, (1.0, 6.0)),
    "no descriptors": Kind(Target.use_up_descriptors, Target.free_descriptors, (1.0, 6.0)),
    "second process": Kind(Target.start_second, nothing, (0.0, 0.0), needs_sync=True),
}
DISK_KINDS = {
    "full disk": Kind(Target.fill_disk, Target.free_disk, (1.0, 5.0)),
    "full disk in a roll": Kind(Target.roll_over_a_full_disk, nothing, (0.0, 0.0), needs_sync=True),
    "power loss": Kind(Target.lose_power, Target.restart, (0.1, 3.0), needs_sync=True),
    "failing syncs": Kind(Target.fail_syncs, Target.repair_disk, (0.1, 3.0), needs_sync=True),
}
"""Where disks can be made to fail: `chaos.disks`."""
PROCESS_KINDS |= DISK_KINDS
BAG = (*PROCESS_KINDS, *["kill"] * 9, *["kill of the controller"] * 2)
"""Kills are the most frequent."""
PROCESS_KINDS["a minute without ZooKeeper"] = _zookeeper(
    "leader", "follower", hold_s=(60, 60), needs_sync=True, goes_on=True
)
"""Only on request: `--kinds`."""
