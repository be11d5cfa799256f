// Changes of leaders and replicas, and what is being reassigned.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ReassignmentRow, Reassignments } from "../api";
import { Table } from "../parts/table";
import { apiPath, ask } from "../server";
import { size } from "../text";
import { t } from "../words";
import { ChangeButton, ChangeDialog } from "./dialog";
import { ChoiceField, TextField } from "./fields";

const PERIOD_MS = 3000;

/** Of one topic, or of all. */
export function ElectLeaders({ cluster, topic }: { cluster: string; topic: string | null }) {
  return (
    <ChangeButton name="elect-leaders" label={t("Elect preferred leaders")}>
      {(close) => (
        <ChangeDialog
          cluster={cluster}
          change="elect-leaders"
          title={t("Elect preferred leaders")}
          verb={t("Elect")}
          values={{ topic }}
          close={close}
        >
          <p class="small quiet">{t("The preferred leader is the first replica.")}</p>
        </ChangeDialog>
      )}
    </ChangeButton>
  );
}

export function MoveReplicas(props: { cluster: string; topic: string }) {
  return (
    <ChangeButton name="move-replicas" label={t("Move replicas")}>
      {(close) => <MoveDialog {...props} close={close} />}
    </ChangeButton>
  );
}

function MoveDialog(props: { cluster: string; topic: string; close: () => void }) {
  const partition = useSignal("0");
  const replicas = useSignal("");
  const nodes = replicas.value.split(/[\s,]+/).filter(Boolean);
  const isComplete =
    partition.value && nodes.length > 0 && nodes.every((node) => /^\d+$/.test(node));
  return (
    <ChangeDialog
      cluster={props.cluster}
      change="move-replicas"
      title={t("Move replicas of {name}", { name: props.topic })}
      verb={t("Move")}
      values={
        isComplete
          ? {
              topic: props.topic,
              partition: Number(partition.value),
              replicas: nodes.map(Number),
            }
          : undefined
      }
      close={props.close}
    >
      <TextField name="partition" label={t("Partition")} type="number" value={partition} />
      <TextField
        name="replicas"
        label={t("Brokers of its replicas, the preferred leader first")}
        value={replicas}
        hint="1, 2, 3"
      />
    </ChangeDialog>
  );
}

export function DrainBroker(props: { cluster: string; nodes: number[] }) {
  return (
    <ChangeButton name="drain-broker" label={t("Drain a broker")}>
      {(close) => <DrainDialog {...props} close={close} />}
    </ChangeButton>
  );
}

function DrainDialog(props: { cluster: string; nodes: number[]; close: () => void }) {
  const node = useSignal("");
  const choices = props.nodes.map((each) => ({ value: String(each), title: String(each) }));
  return (
    <ChangeDialog
      cluster={props.cluster}
      change="drain-broker"
      title={t("Move all replicas away from a broker")}
      verb={t("Drain")}
      values={node.value ? { broker: Number(node.value) } : undefined}
      close={props.close}
    >
      <ChoiceField
        name="broker"
        label={t("Broker")}
        value={node}
        choices={[{ value: "", title: "–" }, ...choices]}
      />
    </ChangeDialog>
  );
}

/** What is being reassigned and how far it is; nothing if nothing is. */
export function RunningReassignments({ cluster, topic }: { cluster: string; topic?: string }) {
  const all = useSignal<ReassignmentRow[]>([]);
  useEffect(() => {
    // Not a stream: a browser opens only few connections to one server at a time.
    const read = () => {
      if (document.hidden) return;
      ask<Reassignments>(apiPath(cluster, "reassignments")).then(
        (page) => (all.value = page.rows),
        () => (all.value = []), // the page around it says what is wrong
      );
    };
    read();
    const timer = setInterval(read, PERIOD_MS);
    return () => clearInterval(timer);
  }, [cluster]);
  const rows = all.value.filter((row) => topic === undefined || row.topic === topic);
  if (rows.length === 0) return null;
  return (
    <section class="card" data-reassignments>
      <h2>{t("Reassignments that are running")}</h2>
      <Table
        label={t("Reassignments that are running")}
        rows={rows}
        rowKey={(row) => `${row.topic}-${row.partition}`}
        columns={[
          { title: t("Partition"), cell: (row) => `${row.topic}-${row.partition}` },
          { title: t("Adding"), cell: (row) => row.adding.join(", ") || "–" },
          { title: t("Removing"), cell: (row) => row.removing.join(", ") || "–" },
          { title: t("Progress"), cell: (row) => <Copied row={row} /> },
          { title: t("Cancel"), cell: (row) => <Cancel cluster={cluster} row={row} /> },
        ]}
      />
    </section>
  );
}

function Copied({ row }: { row: ReassignmentRow }) {
  const text = `${size(row.copied_bytes)} / ${size(row.size_bytes)}`;
  return (
    <>
      <progress
        max={row.size_bytes || 1}
        value={row.size_bytes ? row.copied_bytes : 1}
        aria-label={`${row.topic}-${row.partition}`}
      />{" "}
      {text}
    </>
  );
}

function Cancel({ cluster, row }: { cluster: string; row: ReassignmentRow }) {
  const { topic, partition } = row;
  return (
    <ChangeButton name={`cancel ${topic}-${partition}`} label={t("Cancel")}>
      {(close) => (
        <ChangeDialog
          cluster={cluster}
          change="cancel-reassignment"
          title={t("Cancel the reassignment of {name}", { name: `${topic}-${partition}` })}
          verb={t("Cancel the reassignment")}
          values={{ topic, partition }}
          close={close}
        />
      )}
    </ChangeButton>
  );
}
