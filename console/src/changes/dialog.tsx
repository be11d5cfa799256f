// Every change is asked for in the same way: its values, what it would do, its command; then it is
// done. The dialog is modal: the browser keeps the focus in it and closes it with Escape.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef } from "preact/hooks";
import type { Changes, Done, Preview, Refusal } from "../api";
import { CopyCommand } from "../parts/head";
import { safe } from "../safe";
import { order } from "../server";
import { count } from "../text";
import { t } from "../words";
import { allowsChanges } from "./allowed";
import { OtherRefusal, RefusalOf, TextField } from "./fields";

const PREVIEW_MS = 300;

/** A button that opens a dialog. A console that only reads has none. */
export function ChangeButton(props: {
  label: string;
  name: string;
  isDanger?: boolean;
  children: (close: () => void) => ComponentChildren;
}) {
  const isOpen = useSignal(false);
  if (!allowsChanges.value) return null;
  return (
    <>
      <button
        type="button"
        class={props.isDanger ? "danger" : undefined}
        data-change={props.name}
        onClick={() => (isOpen.value = true)}
      >
        {props.label} …
      </button>
      {isOpen.value && props.children(() => (isOpen.value = false))}
    </>
  );
}

export function ChangeDialog<K extends keyof Changes>(props: {
  cluster: string;
  change: K;
  title: string;
  verb: string;
  /** Undefined until they are complete. */
  values: Changes[K] | undefined;
  /** Why something must be typed. */
  risk?: string;
  close: () => void;
  onDone?: () => void;
  children?: ComponentChildren;
}) {
  const { cluster, change, values } = props;
  const risk = props.risk ?? "This cannot be undone. Type {name} to confirm it.";
  const box = useRef<HTMLDialogElement>(null);
  const title = useId();
  const preview = useSignal<Preview | undefined>(undefined);
  const refusal = useSignal<Refusal | undefined>(undefined);
  const typed = useSignal("");
  const done = useSignal<string | undefined>(undefined);
  const isBusy = useSignal(false);
  const asked = JSON.stringify(values);
  const turn = useRef(0);
  const look = async () => {
    if (values === undefined) return;
    const mine = ++turn.current;
    try {
      const found = await order<Preview, K>(cluster, change, { values, is_preview: true });
      if (mine === turn.current) preview.value = found;
    } catch (problem) {
      if (mine === turn.current) refusal.value = problem as Refusal;
    }
  };
  const { confirm = "" } = preview.value ?? {};
  useLayoutEffect(() => box.current?.showModal(), []);
  useEffect(() => {
    preview.value = refusal.value = undefined;
    turn.current += 1; // what is on its way is no longer wanted
    const timer = setTimeout(look, PREVIEW_MS);
    return () => clearTimeout(timer);
  }, [asked]);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    if (values === undefined) return;
    const { seen = "" } = preview.value ?? {};
    isBusy.value = true;
    refusal.value = undefined;
    try {
      const body = { values, is_preview: false, confirm: isConfirmed ? confirm : "", seen };
      done.value = (await order<Done, K>(cluster, change, body)).text;
    } catch (problem) {
      await look(); // the plan may have changed
      refusal.value = problem as Refusal;
    } finally {
      isBusy.value = false;
    }
  };
  const close = () => {
    props.close();
    if (done.value !== undefined) props.onDone?.();
  };
  // A name with characters that nobody can type is typed as it is shown.
  const isConfirmed = typed.value === safe(confirm);
  const isReady = preview.value !== undefined && isConfirmed && !isBusy.value;
  return (
    <dialog ref={box} aria-labelledby={title} onClose={close} data-dialog={change}>
      <RefusalOf refusal={refusal.value}>
        <form onSubmit={submit}>
          <h2 id={title}>{safe(props.title)}</h2>
          {done.value === undefined ? (
            <>
              {props.children}
              {preview.value && <Plan preview={preview.value} />}
              {confirm && (
                <TextField name="confirm" label={t(risk, { name: confirm })} value={typed} />
              )}
              <OtherRefusal />
            </>
          ) : (
            <p class="card good" role="status" data-done>
              {safe(done.value)}
            </p>
          )}
          <div class="row end">
            <button type="button" onClick={() => box.current?.close()}>
              {t(done.value === undefined ? "Cancel" : "Close")}
            </button>
            {done.value === undefined && (
              <button
                type="submit"
                class={confirm ? "main danger" : "main"}
                disabled={!isReady}
                data-apply
              >
                {props.verb}
              </button>
            )}
          </div>
        </form>
      </RefusalOf>
    </dialog>
  );
}

function Plan({ preview }: { preview: Preview }) {
  const { rows, notes, command } = preview;
  const more = preview.rows_count - rows.length;
  return (
    <section class="plan" aria-label={t("What would be done")} data-plan>
      {rows.length > 0 && (
        <div class="scroll" role="region" aria-label={t("What would be done")} tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">{t("What")}</th>
                <th scope="col">{t("Now")}</th>
                <th scope="col">{t("Then")}</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.what} data-plan-row={row.what}>
                  <td>{safe(row.what)}</td>
                  <td class="mono">{safe(row.before)}</td>
                  <td class="mono">{safe(row.after)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {more > 0 && <p class="quiet small">{t("{count} more", { count: count(more) })}</p>}
      {notes.map((note) => (
        <p key={note} class="small">
          {safe(note)}
        </p>
      ))}
      <div class="command">
        <code data-shown-command>{command}</code>
        <CopyCommand command={command} />
      </div>
    </section>
  );
}
