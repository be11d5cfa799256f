// Ends a transaction that hangs.
import { useSignal } from "@preact/signals";
import { t } from "../words";
import { ChangeButton, ChangeDialog } from "./dialog";
import { numberIn, TextField } from "./fields";

interface Start {
  cluster: string;
  topic: string;
  partition?: number;
  startOffset?: number;
}

export function AbortTransaction(props: Start) {
  return (
    <ChangeButton name="abort-transaction" label={t("Abort a hanging transaction")} isDanger>
      {(close) => <AbortDialog {...props} close={close} />}
    </ChangeButton>
  );
}

function AbortDialog(props: Start & { close: () => void }) {
  const { cluster, topic, close } = props;
  const partition = useSignal(String(props.partition ?? 0));
  const start = useSignal(String(props.startOffset ?? ""));
  const offset = numberIn(start);
  return (
    <ChangeDialog
      cluster={cluster}
      change="abort-transaction"
      title={t("Abort a hanging transaction of {name}", { name: topic })}
      verb={t("Abort")}
      values={
        offset === null
          ? undefined
          : { topic, partition: numberIn(partition) ?? 0, start_offset: offset }
      }
      close={close}
    >
      <p class="small quiet">
        {t("Only one that no coordinator knows; suwi transactions find-hanging finds them.")}
      </p>
      <div class="row">
        <TextField name="partition" label={t("Partition")} type="number" value={partition} />
        <TextField
          name="start_offset"
          label={t("Its first offset in the partition")}
          type="number"
          value={start}
        />
      </div>
    </ChangeDialog>
  );
}
