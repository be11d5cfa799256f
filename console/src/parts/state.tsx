// What a page shows while it has nothing to show: loading, unreachable, forbidden, missing, empty.
import type { ComponentChildren } from "preact";
import type { Problem } from "../api";
import { safe } from "../safe";
import type { Loaded } from "../server";
import { t } from "../words";

const TITLES: Record<string, string> = {
  unreachable: "The cluster does not answer",
  forbidden: "Not allowed",
  missing: "Not found",
  bad: "This address makes no sense",
  stopped: "The console has stopped",
  interrupted: "The connection was interrupted",
  unsupported: "This cluster cannot tell it",
};
const ADVICE: Record<string, string> = {
  unreachable: "This page tries again every few seconds.",
  forbidden:
    "Open the address that suwi console printed, or ask for the rights of this cluster's user.",
  stopped: "Start it again with suwi console, and open the address that it prints.",
};

export function Trouble({ problem }: { problem: Problem }) {
  return (
    <section class="card state" role="alert" data-state={problem.kind}>
      <h2>{t(TITLES[problem.kind] ?? "Something is wrong")}</h2>
      {problem.text && <p class="mono">{safe(problem.text)}</p>}
      {ADVICE[problem.kind] && <p class="quiet">{t(ADVICE[problem.kind] ?? "")}</p>}
    </section>
  );
}

export function Loading() {
  return (
    <p class="state quiet" role="status" data-state="loading">
      {t("Loading …")}
    </p>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return (
    <p class="state quiet" data-state="empty">
      {children}
    </p>
  );
}

/** What the page cannot say, and why. */
export function NotKnown({ what, why }: { what: string; why: string[] }) {
  if (why.length === 0) return null;
  return (
    <p class="card warning small" role="status" data-not-known>
      {what} {why.map(safe).join("; ")}
    </p>
  );
}

/** The page, or why there is none; what was read last stays while the cluster is away. */
export function Shown<T>(props: { loaded: Loaded<T>; children: (page: T) => ComponentChildren }) {
  const { page, problem, isStale } = props.loaded;
  if (page === undefined) return problem ? <Trouble problem={problem} /> : <Loading />;
  return (
    <>
      {isStale && problem && (
        <p class="card warning" role="status" data-state="stale">
          {t(TITLES[problem.kind] ?? "Something is wrong")}. {safe(problem.text)}{" "}
          {t("What follows was read before.")}
        </p>
      )}
      {props.children(page)}
    </>
  );
}
