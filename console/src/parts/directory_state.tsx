// Whether a log directory can be used.
import { t } from "../words";

export function DirectoryState({ isOffline }: { isOffline: boolean }) {
  return (
    <span class={`tag ${isOffline ? "error" : "good"}`}>{t(isOffline ? "offline" : "online")}</span>
  );
}
