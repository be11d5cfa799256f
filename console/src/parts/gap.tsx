// Offsets without a record, and why: the reason is asked for when somebody wants it.
import { linkTo } from "../address";
import type { ExplainedGap, Gap } from "../api";
import { apiPath, useAnswer } from "../server";
import { count } from "../text";
import { t } from "../words";
import { CopyCommand } from "./head";
import { Trouble } from "./state";

export function GapNote(props: { cluster: string; topic: string; gap: Gap }) {
  const { partition, first, end } = props.gap;
  const { answer, askFor } = useAnswer<ExplainedGap>();
  const explain = () =>
    askFor(apiPath(props.cluster, "gap", { topic: props.topic, partition, first, end }));
  const found = typeof answer === "object" ? answer : undefined;
  return (
    <div class="gap small" data-gap={`${partition}:${first}`}>
      <div class="row middle">
        <span class="quiet">
          {end - first === 1
            ? t("Partition {partition}: offset {first} has no record here.", { partition, first })
            : t(
                "Partition {partition}: {count} offsets from {first} to {last} have no record here.",
                {
                  partition,
                  count: count(end - first),
                  first,
                  last: end - 1,
                },
              )}
        </span>
        {answer === undefined && (
          <button type="button" onClick={explain}>
            {t("Why?")}
          </button>
        )}
        {answer === "asked" && <span role="status">{t("Loading …")}</span>}
        {found && "parts" in found && <CopyCommand command={found.command} />}
      </div>
      {found && "kind" in found && <Trouble problem={found} />}
      {found && "parts" in found && (
        <ul class="plain" data-explained>
          {found.parts.map((part) => (
            <li key={part.first}>
              <strong class="mono">
                {part.first === part.last ? part.first : `${part.first}–${part.last}`}
              </strong>{" "}
              {part.explanation}{" "}
              {part.transactional_id !== null && (
                <a href={linkTo(props.cluster, "transactions", part.transactional_id)}>
                  {t("Transaction")}
                </a>
              )}
            </li>
          ))}
          {found.next < end && (
            <li class="quiet">
              {t("What follows from offset {next} on was not looked at.", { next: found.next })}
            </li>
          )}
        </ul>
      )}
    </div>
  );
}
