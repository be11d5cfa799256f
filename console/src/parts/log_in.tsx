// The log-in of a user of the cluster. The password goes to the server, and is kept nowhere here.
import { useSignal } from "@preact/signals";
import type { Problem } from "../api";
import { send } from "../server";
import { t } from "../words";

export function LogIn({ onDone }: { onDone: () => void }) {
  const problem = useSignal<Problem | undefined>(undefined);
  const isBusy = useSignal(false);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const given = new FormData(form);
    isBusy.value = true;
    send("/api/login", { user: given.get("user"), password: given.get("password") })
      .then(onDone, (refused: Problem) => {
        problem.value = refused;
        form.querySelector<HTMLInputElement>("input[name=password]")?.select();
      })
      .finally(() => (isBusy.value = false));
  };
  return (
    <main class="log-in">
      <form class="card" data-state="login" onSubmit={submit}>
        <h1>Suwi</h1>
        <p class="quiet">{t("Log in as a user of the cluster.")}</p>
        <label>
          {t("User")}
          <input name="user" autocomplete="username" required autofocus />
        </label>
        <label>
          {t("Password")}
          <input name="password" type="password" autocomplete="current-password" required />
        </label>
        {problem.value && (
          <p class="card error small" role="alert">
            {problem.value.text || t("The console has stopped")}
          </p>
        )}
        <button type="submit" disabled={isBusy.value}>
          {t("Log in")}
        </button>
      </form>
    </main>
  );
}
