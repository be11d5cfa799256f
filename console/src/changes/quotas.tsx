// Changes of client quotas.
import { useSignal } from "@preact/signals";
import type { QuotaRow } from "../api";
import type { Column } from "../parts/table";
import { t } from "../words";
import { allowsChanges } from "./allowed";
import { ChangeButton, ChangeDialog } from "./dialog";
import { ChoiceField, TextField } from "./fields";

const OF_ADDRESSES = "connection_creation_rate";

interface Asked {
  cluster: string;
  keys: string[];
  /** The quota that is changed; undefined: another one. */
  row?: QuotaRow;
}

export function SetQuota(props: Asked) {
  const label = t(props.row ? "Change" : "Set a quota");
  const name = props.row ? `set-quota ${props.row.entity} ${props.row.key}` : "set-quota";
  return (
    <ChangeButton name={name} label={label}>
      {(close) => <SetDialog {...props} close={close} />}
    </ChangeButton>
  );
}

function SetDialog({ cluster, keys, row, close }: Asked & { close: () => void }) {
  const key = useSignal(row?.key ?? keys[0] ?? "");
  const user = useSignal("");
  const clientId = useSignal("");
  const ip = useSignal("");
  const value = useSignal(row ? String(row.limit) : "");
  const isOfAddress = key.value === OF_ADDRESSES;
  const typed = isOfAddress ? { ip: ip.value } : { user: user.value, "client-id": clientId.value };
  const named = Object.fromEntries(Object.entries(typed).filter(([, name]) => name !== ""));
  const entity = row?.names ?? named;
  const hint = t("*: each that has no quota of its own");
  return (
    <ChangeDialog
      cluster={cluster}
      change="set-quota"
      title={row ? `${row.entity} ${row.key}` : t("Set a quota")}
      verb={t("Set")}
      values={
        value.value && Object.keys(entity).length > 0
          ? { entity, key: key.value, value: value.value }
          : undefined
      }
      close={close}
    >
      {!row && (
        <>
          <ChoiceField
            name="key"
            label={t("Quota")}
            value={key}
            choices={keys.map((each) => ({ value: each, title: each }))}
          />
          {isOfAddress ? (
            <TextField name="ip" label={t("Address")} value={ip} hint={hint} />
          ) : (
            <div class="row">
              <TextField name="user" label={t("User")} value={user} hint={hint} />
              <TextField name="client_id" label={t("Client id")} value={clientId} hint={hint} />
            </div>
          )}
        </>
      )}
      <TextField
        name="value"
        label={t("Limit")}
        value={value}
        hint={t(UNITS[key.value] ?? "Per second, of each broker")}
      />
    </ChangeDialog>
  );
}

const UNITS: Record<string, string> = {
  producer_byte_rate: "Bytes per second, of each broker",
  consumer_byte_rate: "Bytes per second, of each broker",
  request_percentage: "Percent of a broker's event loop: 100 is all of it",
  controller_mutation_rate: "Partitions created and deleted per second",
  connection_creation_rate: "New connections per second, of each broker",
};

/** A column of the table of quotas; a console that only reads has none. */
export function quotaColumn(cluster: string): Column<QuotaRow>[] {
  if (!allowsChanges.value) return [];
  const cell = (row: QuotaRow) => (
    <>
      <SetQuota cluster={cluster} keys={[]} row={row} />{" "}
      <ChangeButton name={`remove-quota ${row.entity} ${row.key}`} label={t("Remove")} isDanger>
        {(close) => (
          <ChangeDialog
            cluster={cluster}
            change="remove-quota"
            title={t("Remove a quota")}
            verb={t("Remove")}
            values={{ entity: row.names, key: row.key }}
            close={close}
          />
        )}
      </ChangeButton>
    </>
  );
  return [{ title: t("Change"), cell }];
}
