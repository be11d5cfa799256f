// Send a record. Bytes that are not text are edited in base 64; what is not edited stays as it is.
import { useSignal } from "@preact/signals";
import type { Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { EditedBytes, EditedHeader, EditedRecord, Problem } from "../api";
import { Trouble } from "../parts/state";
import { apiPath, ask } from "../server";
import { t } from "../words";
import { ChangeButton, ChangeDialog } from "./dialog";
import { numberIn, TextField } from "./fields";

const EMPTY: EditedRecord = {
  key: { form: "null", text: "" },
  value: { form: "text", text: "" },
  headers: [],
  partition: null,
};

interface Asked {
  cluster: string;
  topic: string;
  /** The record that is sent again: PARTITION:OFFSET. */
  place?: string;
}

export function SendRecord(props: Asked) {
  const label = props.place ? t("Edit and send again") : t("Send a record");
  return (
    <ChangeButton name="send-record" label={label}>
      {(close) =>
        props.place ? (
          <Again {...props} close={close} />
        ) : (
          <Form {...props} from={EMPTY} close={close} />
        )
      }
    </ChangeButton>
  );
}

function Again(props: Asked & { close: () => void }) {
  const [partition = "", offset = ""] = (props.place ?? "").split(":");
  const { cluster, topic } = props;
  const read = useSignal<EditedRecord | Problem | undefined>(undefined);
  useEffect(() => {
    ask<EditedRecord>(apiPath(cluster, "edited-record", { topic, partition, offset })).then(
      (record) => (read.value = record),
      (problem: Problem) => (read.value = problem),
    );
  }, []);
  if (read.value === undefined) return null;
  if ("kind" in read.value) return <Trouble problem={read.value} />;
  return <Form {...props} from={read.value} />;
}

function Form(props: Asked & { from: EditedRecord; close: () => void }) {
  const { topic, from } = props;
  const key = useSignal(from.key);
  const value = useSignal(from.value);
  const headers = useSignal(from.headers);
  const partition = useSignal(String(from.partition ?? ""));
  const change = (index: number, header: EditedHeader) =>
    (headers.value = headers.value.map((each, at) => (at === index ? header : each)));
  return (
    <ChangeDialog
      cluster={props.cluster}
      change="send-record"
      title={t("Send a record to {name}", { name: topic })}
      verb={t("Send")}
      values={{
        topic,
        record: {
          key: key.value,
          value: value.value,
          headers: headers.value,
          partition: numberIn(partition),
        },
      }}
      close={props.close}
    >
      <TextField
        name="partition"
        label={t("Partition")}
        type="number"
        value={partition}
        hint={t("Empty: by the key")}
      />
      <BytesField label={t("Key")} value={key} rows={1} />
      <BytesField label={t("Value")} value={value} rows={6} />
      <fieldset>
        <legend>{t("Headers")}</legend>
        {headers.value.map((header, index) => (
          <div class="row" key={index}>
            <label class="field">
              {t(header.name.form === "base64" ? "Name, in base 64" : "Name")}
              <input
                value={header.name.text}
                onInput={(event) =>
                  change(index, {
                    ...header,
                    name: { ...header.name, text: event.currentTarget.value },
                  })
                }
              />
            </label>
            <Bytes
              label={t("Value")}
              bytes={header.value}
              rows={1}
              onChange={(bytes) => change(index, { ...header, value: bytes })}
            />
            <button
              type="button"
              aria-label={t("Remove header {name}", { name: header.name.text })}
              onClick={() => (headers.value = headers.value.filter((_, at) => at !== index))}
            >
              {t("Remove")}
            </button>
          </div>
        ))}
        <button
          type="button"
          onClick={() =>
            (headers.value = [
              ...headers.value,
              { name: { form: "text", text: "" }, value: { form: "text", text: "" } },
            ])
          }
        >
          {t("Add a header")}
        </button>
      </fieldset>
    </ChangeDialog>
  );
}

function BytesField(props: { label: string; value: Signal<EditedBytes>; rows: number }) {
  const { label, value, rows } = props;
  return (
    <Bytes
      label={label}
      rows={rows}
      bytes={value.value}
      onChange={(bytes) => (value.value = bytes)}
    />
  );
}

function Bytes(props: {
  label: string;
  bytes: EditedBytes;
  rows: number;
  onChange: (bytes: EditedBytes) => void;
}) {
  const { label, bytes, onChange } = props;
  return (
    <div class="row bytes">
      <label class="field">
        {label}
        <textarea
          rows={props.rows}
          spellcheck={false}
          disabled={bytes.form === "null"}
          value={bytes.text}
          onInput={(event) => onChange({ ...bytes, text: event.currentTarget.value })}
        />
      </label>
      <label>
        {t("Form")}
        <select
          value={bytes.form}
          onChange={(event) => onChange(converted(bytes, event.currentTarget.value))}
        >
          <option value="text">{t("text")}</option>
          <option value="base64">{t("base 64")}</option>
          <option value="null">null</option>
        </select>
      </label>
    </div>
  );
}

/** The same bytes in another form; empty where they have none. */
function converted(bytes: EditedBytes, form: string): EditedBytes {
  if (bytes.form === "text" && form === "base64") {
    const data = new TextEncoder().encode(bytes.text);
    return { form, text: btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join("")) };
  }
  if (bytes.form === "base64" && form === "text") {
    try {
      const data = Uint8Array.from(atob(bytes.text), (character) => character.charCodeAt(0));
      return {
        form,
        text: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data),
      };
    } catch {
      return { form, text: "" };
    }
  }
  return { form, text: "" };
}
