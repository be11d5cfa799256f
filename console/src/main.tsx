import { render } from "preact";
import { signal } from "@preact/signals";
import type { Console, Problem } from "./api";
import { allowsChanges } from "./changes/allowed";
import { faults } from "./changes/faults";
import { Frame } from "./frame";
import { AccessPage } from "./pages/access";
import { AuditPage } from "./pages/audit";
import { BrokerPage } from "./pages/broker";
import { BrokersPage } from "./pages/brokers";
import { GroupPage } from "./pages/group";
import { GroupsPage } from "./pages/groups";
import { LivePage } from "./pages/live";
import { OverviewPage } from "./pages/overview";
import { PipelinesPage } from "./pages/pipelines";
import { ProducersPage } from "./pages/producers";
import { QuotasPage } from "./pages/quotas";
import { RecordsPage } from "./pages/records";
import { TopicPage } from "./pages/topic";
import { TopicsPage } from "./pages/topics";
import { TransactionPage } from "./pages/transaction";
import { TransactionsPage } from "./pages/transactions";
import { LogIn } from "./parts/log_in";
import { Loading, Trouble } from "./parts/state";
import { linkTo } from "./address";
import { place } from "./route";
import { ask, isLoggedOut } from "./server";
import "./style.css";

const begun = signal<Console | Problem | undefined>(undefined);

function App() {
  const console = begun.value;
  if (isLoggedOut.value) return <LogIn onDone={begin} />;
  if (console === undefined) return <Loading />;
  if ("kind" in console) {
    return (
      <main>
        <Trouble problem={console} />
      </main>
    );
  }
  return (
    <Frame console={console}>
      <Page />
    </Frame>
  );
}

function Page() {
  const { cluster, page, name } = place.value;
  const key = `${cluster}/${page}/${name}`;
  switch (page) {
    case "overview":
      return <OverviewPage cluster={cluster} key={key} />;
    case "topics":
      if (name) return <TopicPage cluster={cluster} name={name} key={key} />;
      return <TopicsPage cluster={cluster} key={key} />;
    case "live":
      return <LivePage cluster={cluster} name={name} key={key} />;
    case "records":
      return <RecordsPage cluster={cluster} name={name} key={key} />;
    case "groups":
      if (name) return <GroupPage cluster={cluster} name={name} key={key} />;
      return <GroupsPage cluster={cluster} key={key} />;
    case "transactions":
      if (name) return <TransactionPage cluster={cluster} name={name} key={key} />;
      return <TransactionsPage cluster={cluster} key={key} />;
    case "producers":
      return <ProducersPage cluster={cluster} name={name} key={key} />;
    case "pipelines":
      return <PipelinesPage cluster={cluster} key={key} />;
    case "brokers":
      if (name) return <BrokerPage cluster={cluster} name={name} key={key} />;
      return <BrokersPage cluster={cluster} key={key} />;
    case "access":
      return <AccessPage cluster={cluster} key={key} />;
    case "quotas":
      return <QuotasPage cluster={cluster} key={key} />;
    case "audit":
      return <AuditPage cluster={cluster} key={key} />;
    default:
      return <Trouble problem={{ kind: "missing", text: page }} />;
  }
}

function begin(): void {
  ask<Console>("/api/clusters").then(
    (console) => {
      if (!place.value.cluster) location.replace(linkTo(console.clusters[0] ?? "", "overview"));
      allowsChanges.value = console.allows_changes;
      faults.value = console.faults;
      begun.value = console;
      isLoggedOut.value = false;
    },
    (problem: Problem) => (begun.value = problem),
  );
}

begin();
const root = document.getElementById("app");
if (root) render(<App />, root);
