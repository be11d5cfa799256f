"""All kinds of faults of a simulated cluster, by the name under which a run chooses them."""

from simulation import (
    disk_fault_scripts,
    fault_scripts,
    mechanism_fault_scripts,
    network_fault_scripts,
    store_fault_scripts,
    task_fault_scripts,
)
from simulation.fault_plan import DAMAGE_LOG, FAIL_TASK, UNCLEAN_ELECTION, FaultPlan, FaultScript

KINDS: dict[str, FaultScript] = {
    "kill": FaultPlan.kill,
    "crash in a write": FaultPlan.crash_in_a_write,
    "stop": FaultPlan.stop,
    "lose power": FaultPlan.lose_power,
    "freeze": FaultPlan.freeze,
    "restart all": FaultPlan.restart_all,
    "cut": network_fault_scripts.cut,
    "isolate": network_fault_scripts.isolate,
    "refuse": network_fault_scripts.refuse,
    "reset": network_fault_scripts.reset,
    "slow": network_fault_scripts.slow,
    "fill disk": disk_fault_scripts.fill,
    "stall disk": disk_fault_scripts.stall,
    "fail disk": disk_fault_scripts.fail_and_restart,
    "fail disk once": disk_fault_scripts.fail_once,
    "deny access": disk_fault_scripts.deny_access,
    DAMAGE_LOG: disk_fault_scripts.damage_log,
    "fail deletion": fault_scripts.fail_deletion,
    FAIL_TASK: task_fault_scripts.fail_task,
    "slow threads": FaultPlan.slow_threads,
    "cut store": store_fault_scripts.cut_store,
    "expire": store_fault_scripts.expire,
    "worsen store": store_fault_scripts.worsen_store,
    "double failover": fault_scripts.double_failover,
    "unclean rejoin": fault_scripts.unclean_rejoin,
}

KINDS_OF_MECHANISMS: dict[str, FaultScript] = {
    "depose controller": mechanism_fault_scripts.depose_controller,
    "depose leader": mechanism_fault_scripts.depose_leader,
    "store outage": mechanism_fault_scripts.store_outage,
    "too few in sync": mechanism_fault_scripts.too_few_in_sync,
    "coordinator waits": mechanism_fault_scripts.coordinator_waits,
    "fill disk of a leader": mechanism_fault_scripts.fill_disk_of_a_leader,
    UNCLEAN_ELECTION: mechanism_fault_scripts.unclean_election,
}
"""Not drawn: a run has them for its pair of mechanisms."""
