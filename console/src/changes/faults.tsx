// Breaks brokers and links of a cluster on this machine, where the console was started with --faults.
import { signal, useSignal } from "@preact/signals";
import type { Done, Faults, Refusal } from "../api";
import { safe } from "../safe";
import { apiPath, send } from "../server";
import { t } from "../words";

/** Those that can be caused, by cluster; the server refuses others. */
export const faults = signal<Record<string, string[]>>({});

const OF_BROKER = [
  ["kill", "Kill"],
  ["restart", "Restart"],
  ["pause", "Freeze"],
  ["resume", "Resume"],
  ["isolate", "Cut off"],
  ["slow", "Slow down"],
  ["power-loss", "Power off"],
  ["fill-disk", "Fill the disk"],
  ["free-disk", "Free the disk"],
] as const;

export function FaultCard({ cluster, brokers }: { cluster: string; brokers: number[] }) {
  const told = useSignal<{ text: string; isBad: boolean } | undefined>(undefined);
  const [from, to] = [useSignal(""), useSignal("")];
  const isOneWay = useSignal(false);
  const allowed = faults.value[cluster] ?? [];
  if (allowed.length === 0) return null;
  const act = <K extends keyof Faults>(fault: K, values: Faults[K]) => {
    told.value = undefined;
    send<Done>(apiPath(cluster, `faults/${fault}`), { values, is_preview: false }).then(
      ({ text }) => (told.value = { text, isBad: false }),
      ({ text }: Refusal) => (told.value = { text, isBad: true }),
    );
  };
  const [source, target] = [Number(from.value), Number(to.value)];
  return (
    <section class="card" data-faults>
      <h2>{t("Faults")}</h2>
      {brokers.map((broker) => (
        <div class="row middle" key={broker} data-faults-of={broker}>
          <span>{t("broker {node}", { node: broker })}</span>
          {OF_BROKER.filter(([fault]) => allowed.includes(fault)).map(([fault, label]) => (
            <button
              type="button"
              key={fault}
              data-fault={fault}
              onClick={() => act(fault, { broker })}
            >
              {t(label)}
            </button>
          ))}
        </div>
      ))}
      <div class="row middle" data-faults-of="links">
        <Ends label={t("What a broker sends")} value={from} brokers={brokers} />
        <Ends label={t("to another")} value={to} brokers={brokers} />
        <label class="beside">
          <input
            type="checkbox"
            checked={isOneWay.value}
            onChange={(event) => (isOneWay.value = event.currentTarget.checked)}
          />
          {t("one way only")}
        </label>
        <button
          type="button"
          data-fault="cut"
          disabled={!from.value || !to.value || source === target}
          onClick={() => act("cut", { broker: source, other: target, one_way: isOneWay.value })}
        >
          {t("Cut the link")}
        </button>
        {allowed.includes("hold") && (
          <button type="button" data-fault="hold" onClick={() => act("hold", { links: "all" })}>
            {t("Hold replication")}
          </button>
        )}
        <button type="button" data-fault="heal" onClick={() => act("heal", { links: "all" })}>
          {t("Restore all links")}
        </button>
      </div>
      <p role="status" class={told.value?.isBad ? "error" : "quiet"}>
        {told.value && safe(told.value.text)}
      </p>
    </section>
  );
}

function Ends(props: { label: string; value: { value: string }; brokers: number[] }) {
  return (
    <label>
      {props.label}
      <select
        value={props.value.value}
        onChange={(event) => (props.value.value = event.currentTarget.value)}
      >
        <option value=""></option>
        {props.brokers.map((broker) => (
          <option key={broker} value={broker}>
            {broker}
          </option>
        ))}
      </select>
    </label>
  );
}
