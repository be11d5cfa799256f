// The brokers at a glance.
import { linkTo } from "../address";
import type { BrokerStatus } from "../api";
import { count, size } from "../text";
import { t } from "../words";
import { Table } from "./table";

export function BrokerTable(props: { cluster: string; brokers: BrokerStatus[] }) {
  const { cluster, brokers } = props;
  return (
    <Table
      label={t("Brokers")}
      rows={brokers}
      rowKey={(broker) => broker.node}
      columns={[
        {
          title: t("Broker"),
          cell: (broker) => (
            <a href={linkTo(cluster, "brokers", String(broker.node))}>
              <strong>{broker.node}</strong>
            </a>
          ),
        },
        {
          title: t("State"),
          cell: (broker) => (
            <>
              <span class={`tag ${broker.state === "alive" ? "good" : "error"}`}>
                {t(broker.state)}
              </span>{" "}
              {broker.is_controller && <span class="tag">{t("controller")}</span>}
            </>
          ),
        },
        {
          title: t("Address"),
          cell: (broker) => <span class="mono">{broker.address ?? "–"}</span>,
        },
        { title: t("Rack"), cell: (broker) => broker.rack ?? "–" },
        { title: t("Leaders"), isNumber: true, cell: (broker) => count(broker.leaders) },
        { title: t("Replicas"), isNumber: true, cell: (broker) => count(broker.replicas) },
        { title: t("Out of sync"), isNumber: true, cell: (broker) => count(broker.out_of_sync) },
        {
          title: t("Free"),
          isNumber: true,
          cell: (broker) => size(leastFree(broker)),
        },
        { title: t("Version"), cell: (broker) => broker.version ?? "–" },
      ]}
    />
  );
}

function leastFree(broker: BrokerStatus): number | null {
  const free = broker.disks.flatMap((disk) => (disk.free_bytes === null ? [] : [disk.free_bytes]));
  return free.length ? Math.min(...free) : null;
}
