// Changes of access rules.
import { useSignal } from "@preact/signals";
import type { AclRow } from "../api";
import type { Column } from "../parts/table";
import { t } from "../words";
import { allowsChanges } from "./allowed";
import { ChangeButton, ChangeDialog } from "./dialog";
import { ChoiceField, TextField } from "./fields";

const LOCKS_OUT = "This can lock somebody out. Type {name} to confirm it.";

/** One line for a rule, unlike any other's. */
export function ruleText(row: AclRow): string {
  const { permission, principal, operation, resource, host } = row;
  return (
    [permission, principal, operation, resource, host].join(" ") + (row.is_literal ? " =" : "")
  );
}

export function AddRule(props: { cluster: string; operations: string[] }) {
  return (
    <ChangeButton name="add-acl" label={t("Add a rule")}>
      {(close) => <AddDialog {...props} close={close} />}
    </ChangeButton>
  );
}

function AddDialog(props: { cluster: string; operations: string[]; close: () => void }) {
  const permission = useSignal("allow");
  const principal = useSignal("");
  const operation = useSignal("read");
  const resource = useSignal("");
  const host = useSignal("");
  return (
    <ChangeDialog
      cluster={props.cluster}
      change="add-acl"
      title={t("Add a rule")}
      verb={t("Add a rule")}
      risk={LOCKS_OUT}
      values={
        principal.value && resource.value
          ? {
              resource: resource.value,
              principal: principal.value,
              operations: operation.value,
              host: host.value,
              is_denial: permission.value === "deny",
              is_literal: false,
            }
          : undefined
      }
      close={props.close}
    >
      <div class="row">
        <ChoiceField
          name="permission"
          label={t("Permission")}
          value={permission}
          choices={["allow", "deny"].map((value) => ({ value, title: t(value) }))}
        />
        <TextField
          name="principal"
          label={t("Principal")}
          value={principal}
          hint={t("User:alice; User:* for everybody")}
          isRequired
        />
      </div>
      <div class="row">
        <ChoiceField
          name="operations"
          label={t("Operation")}
          value={operation}
          choices={props.operations.map((value) => ({ value, title: value }))}
        />
        <TextField
          name="resource"
          label={t("Resource")}
          value={resource}
          hint={t("topic:orders, topic:orders-* for a prefix, group:*, cluster")}
          isRequired
        />
      </div>
      <TextField
        name="host"
        label={t("From host")}
        value={host}
        hint={t("An address, or a range as 10.0.0.0/8. Empty: any")}
      />
    </ChangeDialog>
  );
}

/** A column of the table of rules; a console that only reads has none. */
export function ruleColumn(cluster: string): Column<AclRow>[] {
  if (!allowsChanges.value) return [];
  const cell = (row: AclRow) => (
    <ChangeButton name={`remove-acl ${ruleText(row)}`} label={t("Remove")} isDanger>
      {(close) => (
        <ChangeDialog
          cluster={cluster}
          change="remove-acl"
          title={t("Remove a rule")}
          verb={t("Remove")}
          risk={LOCKS_OUT}
          values={{
            resource: row.resource,
            principal: row.principal,
            operations: row.operation,
            host: row.host,
            is_denial: row.permission === "deny",
            is_literal: row.is_literal,
          }}
          close={close}
        />
      )}
    </ChangeButton>
  );
  return [{ title: t("Change"), cell }];
}
