// Requests to the console's server: a page once, then what changes of it.
import { signal, useSignal } from "@preact/signals";
import type { ReadonlySignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Changes, Order, Problem } from "./api";
import { queryText } from "./address";

export type Loaded<T> = { page?: T; problem?: Problem; isStale: boolean };
type Query = Record<string, string | number>;

export function apiPath(cluster: string, page: string, query: Query = {}): string {
  const asked = queryText(query);
  return `/api/clusters/${encodeURIComponent(cluster)}/${page}${asked && `?${asked}`}`;
}

/** Whether this browser has to log in, or to do it again. */
export const isLoggedOut = signal(false);

/** The JSON at a path. Throws a `Problem`. */
export async function ask<T>(path: string, options: RequestInit = {}): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, options);
  } catch {
    throw { kind: "stopped", text: "" } satisfies Problem;
  }
  if (response.ok) return (await response.json()) as T;
  const problem = (await response.json().catch(() => ({
    kind: "unreachable",
    text: response.statusText,
  }))) as Problem;
  if (problem.kind === "login") isLoggedOut.value = true;
  throw problem;
}

/** A request that changes something; no form of another site can set its header. */
export function send<T>(path: string, body: unknown): Promise<T> {
  return ask<T>(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Suwi-Console": "1" },
    body: JSON.stringify(body),
  });
}

/** Whether nobody sees this page. It costs the cluster nothing then. */
export const isHidden = signal(document.hidden);
document.addEventListener("visibilitychange", () => (isHidden.value = document.hidden));

/** Why a stream has ended. A browser does not say it; a request does, such as a session that is
 * over. */
export async function whyEnded(): Promise<Problem> {
  try {
    await ask("/api/clusters");
  } catch (problem) {
    return problem as Problem;
  }
  return { kind: "interrupted", text: "" };
}

/** Asks for a change, or for what it would do. Throws a `Refusal`. */
export function order<T, K extends keyof Changes>(
  cluster: string,
  change: K,
  body: Partial<Omit<Order, "values">> & { values: Changes[K] },
): Promise<T> {
  return send<T>(apiPath(cluster, `changes/${change}`), body);
}

/** A page as it is now, or why there is none; undefined until it is loaded. */
export function useOnce<T>(path: string): ReadonlySignal<T | Problem | undefined> {
  const page = useSignal<T | Problem | undefined>(undefined);
  useEffect(() => {
    let isGone = false; // an answer that comes late is another page's
    const show = (read: T | Problem) => {
      if (!isGone) page.value = read;
    };
    page.value = undefined;
    ask<T>(path).then(show, show);
    return () => {
      isGone = true;
    };
  }, [path]);
  return page;
}

/** What somebody asks for: the answer or why there is none; undefined before, `asked` meanwhile. */
export function useAnswer<T>(): {
  answer: T | Problem | "asked" | undefined;
  askFor: (path: string) => void;
} {
  const answer = useSignal<T | Problem | "asked" | undefined>(undefined);
  const askFor = (path: string) => {
    answer.value = "asked";
    const show = (read: T | Problem) => (answer.value = read);
    ask<T>(path).then(show, show);
  };
  return { answer: answer.value, askFor };
}

/** A page that follows its cluster; undefined until it is loaded. */
export function usePage<T>(path: string): ReadonlySignal<Loaded<T>> {
  const loaded = useSignal<Loaded<T>>({ isStale: false });
  useEffect(() => {
    loaded.value = { isStale: false };
    let source: EventSource | undefined;
    let isGone = false;
    const show = (next: Loaded<T>) => {
      if (!isGone) loaded.value = next;
    };
    const follow = () => {
      if (isGone) return;
      source = new EventSource(path);
      source.addEventListener("page", (event: MessageEvent<string>) =>
        show({ page: JSON.parse(event.data) as T, isStale: false }),
      );
      source.addEventListener("problem", (event: MessageEvent<string>) =>
        show({ ...loaded.value, problem: JSON.parse(event.data) as Problem, isStale: true }),
      );
      source.onerror = () => {
        show({ ...loaded.value, problem: { kind: "stopped", text: "" }, isStale: true });
        // A browser does not say why it was refused; a request does, such as a session that ended.
        if (source?.readyState === EventSource.CLOSED && !isGone && !document.hidden) {
          ask<T>(path).then(follow, (problem: Problem) =>
            show({ ...loaded.value, problem, isStale: true }),
          );
        }
      };
    };
    ask<T>(path).then(
      (page) => {
        show({ page, isStale: false });
        follow();
      },
      (problem: Problem) => {
        show({ problem, isStale: false });
        if (problem.kind === "unreachable") follow();
      },
    );
    // A hidden page costs the cluster nothing, and leaves its connection to the pages that are seen.
    const pause = () => {
      source?.close();
      if (source && !document.hidden) follow();
    };
    document.addEventListener("visibilitychange", pause);
    return () => {
      isGone = true;
      source?.close();
      document.removeEventListener("visibilitychange", pause);
    };
  }, [path]);
  return loaded;
}
