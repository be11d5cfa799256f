// The ZooKeeper servers, where there are some.
import type { ServerStatus } from "../api";
import { t } from "../words";
import { Table } from "./table";

export function Ensemble({ servers }: { servers: ServerStatus[] }) {
  if (servers.length === 0) return null;
  return (
    <section class="card">
      <h2>ZooKeeper</h2>
      <Table
        label="ZooKeeper"
        rows={servers}
        rowKey={(server) => server.address}
        columns={[
          { title: t("Server"), cell: (server) => server.address },
          { title: t("State"), cell: (server) => t(server.state) },
          { title: t("Version"), cell: (server) => server.version ?? "–" },
        ]}
      />
    </section>
  );
}
