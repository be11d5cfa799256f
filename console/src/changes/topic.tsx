// Changes of topics.
import { useSignal } from "@preact/signals";
import { linkTo } from "../address";
import type { ConfigRow } from "../api";
import type { Column } from "../parts/table";
import { t } from "../words";
import { allowsChanges } from "./allowed";
import { ChangeButton, ChangeDialog } from "./dialog";
import { AreaField, ChoiceField, numberIn, TextField } from "./fields";
import { SendRecord } from "./record";
import { ElectLeaders, MoveReplicas } from "./replicas";
import { AbortTransaction } from "./transaction";

interface Asked {
  cluster: string;
  topic: string;
  close: () => void;
}

export function CreateTopic({ cluster }: { cluster: string }) {
  return (
    <ChangeButton name="create-topic" label={t("Create a topic")}>
      {(close) => <CreateDialog cluster={cluster} close={close} />}
    </ChangeButton>
  );
}

function CreateDialog({ cluster, close }: { cluster: string; close: () => void }) {
  const topic = useSignal("");
  const partitions = useSignal("");
  const factor = useSignal("");
  const configs = useSignal("");
  return (
    <ChangeDialog
      cluster={cluster}
      change="create-topic"
      title={t("Create a topic")}
      verb={t("Create")}
      values={
        topic.value
          ? {
              topic: topic.value,
              partitions: numberIn(partitions),
              replication_factor: numberIn(factor),
              configs: parsedConfigs(configs.value),
            }
          : undefined
      }
      close={close}
      onDone={() => (location.hash = linkTo(cluster, "topics", topic.value))}
    >
      <TextField name="topic" label={t("Name")} value={topic} isRequired />
      <div class="row">
        <TextField
          name="partitions"
          label={t("Partitions")}
          type="number"
          value={partitions}
          hint={t("Empty: the broker's default")}
        />
        <TextField
          name="replication_factor"
          label={t("Replicas")}
          type="number"
          value={factor}
          hint={t("Empty: the broker's default")}
        />
      </div>
      <AreaField
        name="configs"
        label={t("Configuration")}
        value={configs}
        hint={t("One line for each key: retention.ms=86400000")}
      />
    </ChangeDialog>
  );
}

function parsedConfigs(text: string): Record<string, string> {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const [key = "", ...value] = line.split("=");
      return [key.trim(), value.join("=").trim()];
    }),
  );
}

/** What can be done with a topic. */
export function TopicChanges({ cluster, topic }: { cluster: string; topic: string }) {
  return (
    <div class="row changes">
      <SendRecord cluster={cluster} topic={topic} />
      <ChangeButton name="add-partitions" label={t("Add partitions")}>
        {(close) => <PartitionsDialog {...{ cluster, topic, close }} />}
      </ChangeButton>
      <MoveReplicas cluster={cluster} topic={topic} />
      <ElectLeaders cluster={cluster} topic={topic} />
      <AbortTransaction cluster={cluster} topic={topic} />
      <ChangeButton name="delete-records" label={t("Delete records")} isDanger>
        {(close) => <RecordsDialog {...{ cluster, topic, close }} />}
      </ChangeButton>
      <ChangeButton name="delete-topic" label={t("Delete the topic")} isDanger>
        {(close) => (
          <ChangeDialog
            cluster={cluster}
            change="delete-topic"
            title={t("Delete {name} with all its records", { name: topic })}
            verb={t("Delete")}
            values={{ topic }}
            close={close}
            onDone={() => (location.hash = linkTo(cluster, "topics"))}
          />
        )}
      </ChangeButton>
    </div>
  );
}

function PartitionsDialog({ cluster, topic, close }: Asked) {
  const partitions = useSignal("");
  const wanted = numberIn(partitions);
  return (
    <ChangeDialog
      cluster={cluster}
      change="add-partitions"
      title={t("More partitions for {name}", { name: topic })}
      verb={t("Add partitions")}
      values={wanted === null ? undefined : { topic, partitions: wanted }}
      close={close}
    >
      <TextField
        name="partitions"
        label={t("How many partitions it shall have")}
        type="number"
        value={partitions}
        hint={t("Partitions can be added, never removed.")}
      />
    </ChangeDialog>
  );
}

function RecordsDialog({ cluster, topic, close }: Asked) {
  const partition = useSignal("0");
  const before = useSignal("");
  return (
    <ChangeDialog
      cluster={cluster}
      change="delete-records"
      title={t("Delete records of {name}", { name: topic })}
      verb={t("Delete")}
      values={
        partition.value
          ? { topic, partition: Number(partition.value), before: numberIn(before) }
          : undefined
      }
      close={close}
    >
      <TextField name="partition" label={t("Partition")} type="number" value={partition} />
      <TextField
        name="before"
        label={t("The first offset to keep")}
        type="number"
        value={before}
        hint={t("Empty: delete all records that it has now")}
      />
    </ChangeDialog>
  );
}

/** A column of the table of settings; a console that only reads has none. */
export function configColumn(cluster: string, topic: string): Column<ConfigRow>[] {
  if (!allowsChanges.value) return [];
  const cell = (config: ConfigRow) => (
    <ChangeButton name={`config ${config.key}`} label={t("Change")}>
      {(close) => <ConfigDialog {...{ cluster, topic, close, config }} />}
    </ChangeButton>
  );
  return [{ title: t("Change"), cell }];
}

function ConfigDialog({ cluster, topic, close, config }: Asked & { config: ConfigRow }) {
  const isOwn = config.source === "topic";
  const way = useSignal("set");
  const value = useSignal(config.value ?? "");
  return (
    <ChangeDialog
      cluster={cluster}
      change="set-configs"
      title={config.key}
      verb={t("Change")}
      values={{ topic, configs: { [config.key]: way.value === "set" ? value.value : null } }}
      close={close}
    >
      {config.doc && <p class="small quiet">{config.doc}</p>}
      {isOwn && (
        <ChoiceField
          name="way"
          label={t("Change")}
          value={way}
          choices={[
            { value: "set", title: t("Set a value") },
            { value: "unset", title: t("Back to the default") },
          ]}
        />
      )}
      {way.value === "set" && <TextField name="configs" label={t("Value")} value={value} />}
    </ChangeDialog>
  );
}
