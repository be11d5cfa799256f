// What surrounds every page: clusters, navigation, language and colors.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { Console, Problem } from "./api";
import icon from "./icon.svg";
import { remember, remembered } from "./memory";
import { linkTo } from "./address";
import { place } from "./route";
import { safe } from "./safe";
import { isLoggedOut, send } from "./server";
import { chooseLanguage, language, t } from "./words";
import type { Language } from "./words";

const NAVIGATION = [
  { page: "overview", title: "Overview" },
  { page: "topics", title: "Topics" },
  { page: "groups", title: "Groups" },
  { page: "transactions", title: "Transactions" },
  { page: "pipelines", title: "Pipelines" },
  { page: "brokers", title: "Brokers" },
  { page: "access", title: "Access" },
] as const;

/** Pages that belong to another one. */
const SECTIONS: Record<string, string> = {
  live: "topics",
  records: "topics",
  producers: "topics",
  quotas: "access",
  audit: "access",
};

/** Why the session goes on. */
const notLoggedOut = signal<Problem | undefined>(undefined);
const theme = signal(remembered("theme") ?? "system");

export function Frame(props: { console: Console; children: ComponentChildren }) {
  const { cluster, page, name } = place.value;
  const section = SECTIONS[page] ?? page;
  useEffect(() => {
    document.documentElement.lang = language.value;
    document.title = [safe(name), t(titleOf(section)), "Suwi"].filter(Boolean).join(" · ");
  });
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        {t("Skip to the content")}
      </a>
      <header class="bar">
        <a class="name" href={linkTo(cluster, "overview")}>
          <img src={icon} alt="" /> Suwi
        </a>
        <nav aria-label={t("Pages")}>
          {NAVIGATION.map((each) => (
            <a
              key={each.page}
              href={linkTo(cluster, each.page)}
              aria-current={each.page === section ? "page" : undefined}
            >
              {t(each.title)}
            </a>
          ))}
        </nav>
        <div class="settings">
          {props.console.clusters.length > 1 && (
            <select
              aria-label={t("Cluster")}
              value={cluster}
              onChange={(event) => (location.hash = linkTo(event.currentTarget.value, "overview"))}
            >
              {props.console.clusters.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          )}
          <Settings />
          {props.console.user !== null && (
            <button type="button" title={props.console.user} onClick={logOut}>
              {t("Log out {user}", { user: props.console.user })}
            </button>
          )}
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {notLoggedOut.value && (
          <p class="card error" role="alert" data-state="not-logged-out">
            {t("You are still logged in: the console did not answer.")} {notLoggedOut.value.text}
          </p>
        )}
        {props.children}
      </main>
    </>
  );
}

function logOut(): void {
  notLoggedOut.value = undefined;
  send("/api/logout", {}).then(
    () => (isLoggedOut.value = true),
    (problem: Problem) => (notLoggedOut.value = problem),
  );
}

function skip(event: Event): void {
  event.preventDefault(); // the hash says which page it is
  document.getElementById("main")?.focus();
}

function titleOf(page: string): string {
  return NAVIGATION.find((each) => each.page === page)?.title ?? "";
}

function Settings() {
  useEffect(() => {
    if (theme.value === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme.value;
  });
  return (
    <>
      <select
        aria-label={t("Colors")}
        value={theme.value}
        onChange={(event) => {
          theme.value = event.currentTarget.value;
          remember("theme", theme.value);
        }}
      >
        <option value="system">{t("System colors")}</option>
        <option value="light">{t("Light")}</option>
        <option value="dark">{t("Dark")}</option>
      </select>
      <select
        aria-label={t("Language")}
        value={language.value}
        onChange={(event) => chooseLanguage(event.currentTarget.value as Language)}
      >
        <option value="en">English</option>
        <option value="ko" lang="ko">
          한국어
        </option>
      </select>
    </>
  );
}
