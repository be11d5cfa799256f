// The head of a page: its title, and the command that says the same.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { safe } from "../safe";
import { t } from "../words";

export function Head(props: {
  title: string;
  about?: ComponentChildren;
  command?: string | undefined;
}) {
  return (
    <div class="head">
      <div>
        <h1>{safe(props.title)}</h1>
        {props.about && <div class="quiet">{props.about}</div>}
      </div>
      {props.command && <CopyCommand command={props.command} />}
    </div>
  );
}

export function CopyCommand({ command }: { command: string }) {
  const label = useSignal("Copy as command");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(command);
      label.value = "Copied";
    } catch {
      label.value = "The browser does not let it be copied";
    }
    setTimeout(() => (label.value = "Copy as command"), 2000);
  };
  return (
    <button type="button" class="copy" title={command} data-command={command} onClick={copy}>
      <span aria-live="polite">{t(label.value)}</span>
    </button>
  );
}
