// The fields of a change. An error of the server is shown at the field that it is about.
import type { Signal } from "@preact/signals";
import { createContext } from "preact";
import type { ComponentChildren } from "preact";
import { useContext, useId, useRef } from "preact/hooks";
import type { Refusal } from "../api";
import { safe } from "../safe";
import { t } from "../words";

interface Told {
  refusal: Refusal | undefined;
  /** The fields that are shown. */
  fields: Set<string>;
}

const Context = createContext<Told>({ refusal: undefined, fields: new Set() });

export function RefusalOf(props: { refusal: Refusal | undefined; children: ComponentChildren }) {
  const fields = useRef(new Set<string>());
  return (
    <Context.Provider value={{ refusal: props.refusal, fields: fields.current }}>
      {props.children}
    </Context.Provider>
  );
}

/** What is about none of the fields. */
export function OtherRefusal() {
  const { refusal, fields } = useContext(Context);
  if (!refusal || fields.has(refusal.field)) return null;
  return (
    <p class="card error small" role="alert" data-refusal={refusal.kind}>
      {safe(refusal.text) || t("The console has stopped")}
    </p>
  );
}

function Field(props: {
  name: string;
  label: string;
  hint?: string | undefined;
  children: (about: {
    "aria-invalid": boolean;
    "aria-describedby": string;
    name: string;
  }) => ComponentChildren;
}) {
  const { refusal, fields } = useContext(Context);
  const id = useId();
  fields.add(props.name);
  const isWrong = refusal?.field === props.name;
  return (
    <label class="field">
      {props.label}
      {props.children({ "aria-invalid": isWrong, "aria-describedby": id, name: props.name })}
      <span id={id} class={isWrong ? "wrong" : ""} data-wrong={isWrong ? props.name : undefined}>
        {isWrong ? safe(refusal.text) : props.hint}
      </span>
    </label>
  );
}

export function TextField(props: {
  name: string;
  label: string;
  value: Signal<string>;
  hint?: string;
  type?: "text" | "number" | "datetime-local";
  isRequired?: boolean;
}) {
  const type = props.type ?? "text";
  return (
    <Field name={props.name} label={props.label} hint={props.hint}>
      {(about) => (
        <input
          {...about}
          type={type as "text"} // Preact's types want one at a time
          min={type === "number" ? 0 : undefined}
          step={type === "datetime-local" ? "1" : undefined}
          autocomplete="off"
          spellcheck={false}
          required={props.isRequired}
          value={props.value.value}
          onInput={(event) => (props.value.value = event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function AreaField(props: {
  name: string;
  label: string;
  value: Signal<string>;
  hint?: string;
  rows?: number;
}) {
  return (
    <Field name={props.name} label={props.label} hint={props.hint}>
      {(about) => (
        <textarea
          {...about}
          rows={props.rows ?? 4}
          spellcheck={false}
          value={props.value.value}
          onInput={(event) => (props.value.value = event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function ChoiceField(props: {
  name: string;
  label: string;
  value: Signal<string>;
  choices: { value: string; title: string }[];
}) {
  return (
    <Field name={props.name} label={props.label}>
      {(about) => (
        <select
          {...about}
          value={props.value.value}
          onChange={(event) => (props.value.value = event.currentTarget.value)}
        >
          {props.choices.map((each) => (
            <option key={each.value} value={each.value}>
              {each.title}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** The number in a field; null if it is empty. */
export function numberIn(value: Signal<string>): number | null {
  return value.value === "" ? null : Number(value.value);
}
