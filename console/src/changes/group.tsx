// Changes of consumer groups.
import { useSignal } from "@preact/signals";
import type { Signal } from "@preact/signals";
import { linkTo } from "../address";
import type { Group } from "../api";
import { t } from "../words";
import { ChangeButton, ChangeDialog } from "./dialog";
import { ChoiceField, TextField } from "./fields";

interface Asked {
  cluster: string;
  page: Group;
  close: () => void;
}

export function GroupChanges({ cluster, page }: { cluster: string; page: Group }) {
  const { group } = page;
  return (
    <div class="row changes">
      <ChangeButton name="reset-group" label={t("Reset")}>
        {(close) => <ResetDialog {...{ cluster, page, close }} />}
      </ChangeButton>
      {page.topics.length > 0 && (
        <ChangeButton name="delete-offsets" label={t("Delete offsets of a topic")} isDanger>
          {(close) => <OffsetsDialog {...{ cluster, page, close }} />}
        </ChangeButton>
      )}
      <ChangeButton name="delete-group" label={t("Delete the group")} isDanger>
        {(close) => (
          <ChangeDialog
            cluster={cluster}
            change="delete-group"
            title={t("Delete group {name} with all its offsets", { name: group })}
            verb={t("Delete")}
            values={{ group }}
            close={close}
            onDone={() => (location.hash = linkTo(cluster, "groups"))}
          />
        )}
      </ChangeButton>
    </div>
  );
}

function ResetDialog({ cluster, page, close }: Asked) {
  const topic = useSignal("");
  const partition = useSignal("");
  const to = useSignal("to-earliest");
  const value = useSignal("");
  const hasValue = !["to-earliest", "to-latest"].includes(to.value);
  const time = to.value === "to-datetime" && value.value ? `${value.value}Z` : value.value;
  return (
    <ChangeDialog
      cluster={cluster}
      change="reset-group"
      title={t("Where group {name} continues to read", { name: page.group })}
      verb={t("Reset")}
      values={
        hasValue && !value.value
          ? undefined
          : {
              group: page.group,
              topic: topic.value || null,
              partition: topic.value && partition.value ? Number(partition.value) : null,
              to: to.value,
              value: hasValue ? time : "",
            }
      }
      close={close}
    >
      <div class="row">
        <ChoiceField
          name="topic"
          label={t("Topic")}
          value={topic}
          choices={[{ value: "", title: t("all") }, ...page.topics.map(named)]}
        />
        {topic.value && (
          <TextField
            name="partition"
            label={t("Partition")}
            type="number"
            value={partition}
            hint={t("Empty: all")}
          />
        )}
      </div>
      <div class="row">
        <ChoiceField
          name="to"
          label={t("To")}
          value={to}
          choices={[
            { value: "to-earliest", title: t("the oldest record") },
            { value: "to-latest", title: t("the end: only new records") },
            { value: "to-offset", title: t("an offset") },
            { value: "shift-by", title: t("by a number of records") },
            { value: "to-datetime", title: t("a time") },
            { value: "by-duration", title: t("the last hours or days") },
          ]}
        />
        {hasValue && <Value to={to.value} value={value} key={to.value} />}
      </div>
    </ChangeDialog>
  );
}

function Value({ to, value }: { to: string; value: Signal<string> }) {
  const name = "value";
  switch (to) {
    case "to-offset":
      return <TextField name={name} label={t("Offset")} type="number" value={value} />;
    case "shift-by":
      return <TextField name={name} label={t("Records")} value={value} hint={t("-10: back")} />;
    case "to-datetime":
      return <TextField name={name} label={t("Time (UTC)")} type="datetime-local" value={value} />;
    default:
      return <TextField name={name} label={t("Duration")} value={value} hint="90m, 2h, 1d" />;
  }
}

function OffsetsDialog({ cluster, page, close }: Asked) {
  const topic = useSignal(page.topics[0] ?? "");
  return (
    <ChangeDialog
      cluster={cluster}
      change="delete-offsets"
      title={t("Delete offsets of group {name}", { name: page.group })}
      verb={t("Delete")}
      values={{ group: page.group, topic: topic.value }}
      close={close}
    >
      <ChoiceField name="topic" label={t("Topic")} value={topic} choices={page.topics.map(named)} />
    </ChangeDialog>
  );
}

function named(name: string): { value: string; title: string } {
  return { value: name, title: name };
}
