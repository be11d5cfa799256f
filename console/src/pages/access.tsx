// Who may do what: access rules, whom they allow something, and the users.
import { linkTo } from "../address";
import type { AccessRules, AclCheck, AclRow } from "../api";
import { AddRule, ruleColumn, ruleText } from "../changes/access";
import { CopyCommand, Head } from "../parts/head";
import { List, partQuery } from "../parts/list";
import { Loading, Shown } from "../parts/state";
import { Tabs } from "../parts/tabs";
import { place } from "../route";
import { safe } from "../safe";
import { apiPath, useAnswer, usePage } from "../server";
import { t } from "../words";

const TABS = [
  { page: "access", title: "Rules and users" },
  { page: "quotas", title: "Quotas" },
  { page: "audit", title: "Audit log" },
];

/** The pages of this section. */
export function AccessTabs({ cluster }: { cluster: string }) {
  return (
    <Tabs
      label={t("Access")}
      tabs={TABS.map(({ page, title }) => ({
        title: t(title),
        href: linkTo(cluster, page),
        isChosen: place.value.page === page,
      }))}
    />
  );
}

export function AccessPage({ cluster }: { cluster: string }) {
  const { query } = place.value;
  const [ofRules, ofUsers] = [partQuery(query), partQuery(query, "user_")];
  const loaded = usePage<AccessRules>(apiPath(cluster, "acls", { ...ofRules, ...ofUsers }));
  return (
    <Shown loaded={loaded.value}>
      {(page) => (
        <>
          <Head title={t("Access")} command={page.is_on ? page.command : undefined} />
          <AccessTabs cluster={cluster} />
          {page.is_on ? (
            <Rules cluster={cluster} page={page} kept={ofUsers} />
          ) : (
            <section class="card state" data-state="off">
              <h2>{t("Access rules are off")}</h2>
              <p>{t("Every client that may connect may do everything.")}</p>
              <p class="quiet">
                {t(
                  "Rules work when every broker has authorizer.class.name and super.users. docs/security.md, From open to closed, says how a running cluster gets them.",
                )}
              </p>
            </section>
          )}
          {page.is_on && <Check cluster={cluster} operations={page.operations} />}
          <Users cluster={cluster} page={page} kept={ofRules} />
        </>
      )}
    </Shown>
  );
}

interface OfPage {
  cluster: string;
  page: AccessRules;
  /** What the address asks of the other list. */
  kept: Record<string, string>;
}

function Rules({ cluster, page, kept }: OfPage) {
  const { settings } = page;
  return (
    <section class="card" data-rules>
      <div class="head">
        <h2>{t("Rules")}</h2>
        <AddRule cluster={cluster} operations={page.operations} />
      </div>
      {settings === null ? (
        <p class="quiet small" data-untold>
          {t(
            "The brokers do not tell who is a super user, and whether what no rule is about is open.",
          )}
        </p>
      ) : (
        <p class="quiet small">
          {settings.super_users.length > 0 &&
            t("Super users, who may do everything: {names}.", {
              names: settings.super_users.join(", "),
            })}{" "}
          {settings.allows_without_rules
            ? t("What no rule is about is open to everybody (allow.everyone.if.no.acl.found).")
            : t("What no rule allows is refused.")}
        </p>
      )}
      <List
        list={{ cluster, page: "access", kept, part: page.part }}
        search={t("Rule contains")}
        empty={t("There are no rules.")}
        none={t("No rule is like that.")}
        label={t("Rules")}
        rows={page.rows}
        rowKey={ruleText}
        columns={[
          {
            title: t("Permission"),
            cell: (row) => (
              <span class={`tag ${row.permission === "deny" ? "error" : ""}`}>
                {t(row.permission)}
              </span>
            ),
          },
          { title: t("Principal"), cell: (row) => row.principal },
          { title: t("Operation"), cell: (row) => row.operation },
          { title: t("Resource"), cell: resource },
          { title: t("From host"), cell: (row) => (row.host === "*" ? t("any") : row.host) },
          ...ruleColumn(cluster),
        ]}
      />
    </section>
  );
}

function resource(row: AclRow) {
  return (
    <>
      {safe(row.resource)} {row.is_literal && <span class="tag">{t("this name only")}</span>}
    </>
  );
}

/** Would it be allowed, and by which rule. */
function Check({ cluster, operations }: { cluster: string; operations: string[] }) {
  const { answer: shown, askFor } = useAnswer<AclCheck>();
  const look = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const value = (field: string) => String(form.get(field) ?? "").trim();
    const fields = ["principal", "operation", "resource", "host"];
    const asked = Object.fromEntries(fields.map((field) => [field, value(field)]));
    askFor(apiPath(cluster, "acl-check", asked));
  };
  return (
    <section class="card" data-check>
      <h2>{t("Would it be allowed?")}</h2>
      <form class="row" onSubmit={look}>
        <label>
          {t("Principal")}
          <input name="principal" placeholder="User:alice" required />
        </label>
        <label>
          {t("Operation")}
          <select name="operation" value="read">
            {operations.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <label>
          {t("Resource")}
          <input name="resource" placeholder="topic:orders" required />
        </label>
        <label>
          {t("From host")}
          <input name="host" placeholder="127.0.0.1" />
        </label>
        <button type="submit">{t("Check")}</button>
        {typeof shown === "object" && "command" in shown && <CopyCommand command={shown.command} />}
      </form>
      {shown === "asked" && <Loading />}
      {typeof shown === "object" &&
        ("kind" in shown ? (
          <p class="card warning small" role="alert" data-refusal={shown.kind}>
            {safe(shown.text) || t("The console has stopped")}
          </p>
        ) : (
          <p class={`card small ${shown.is_allowed ? "good" : "error"}`} role="status" data-verdict>
            <strong>{t(shown.is_allowed ? "Allowed" : "Not allowed")}</strong>: {safe(shown.reason)}
          </p>
        ))}
    </section>
  );
}

function Users({ cluster, page, kept }: OfPage) {
  return (
    <section class="card" data-users>
      <div class="head">
        <h2>{t("Users who log in by SCRAM")}</h2>
        <CopyCommand command={page.users_command} />
      </div>
      {page.users_problem !== null ? (
        <p class="card warning small">
          {t("They are not known:")} {safe(page.users_problem)}
        </p>
      ) : (
        <List
          list={{ cluster, page: "access", kept, part: page.users_part, prefix: "user_" }}
          search={t("Name contains")}
          empty={t("There are none. suwi users add NAME adds one.")}
          none={t("No user has such a name.")}
          label={t("Users who log in by SCRAM")}
          rows={page.users}
          rowKey={(row) => row.user}
          columns={[
            { title: t("User"), cell: (row) => row.user },
            { title: t("Mechanisms (iterations)"), cell: (row) => row.mechanisms.join(", ") },
            {
              title: t("Rules"),
              cell: (row) => (
                <a href={linkTo(cluster, "access", "", { search: `User:${row.user}` })}>
                  {t("Show the rules")}
                </a>
              ),
            },
            {
              title: t("Quotas"),
              cell: (row) => (
                <a href={linkTo(cluster, "quotas", "", { search: `user:${row.user}` })}>
                  {t("Show the quotas")}
                </a>
              ),
            },
          ]}
        />
      )}
    </section>
  );
}
