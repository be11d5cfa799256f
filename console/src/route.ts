// Where the user is.
import { signal } from "@preact/signals";
import { parsePlace } from "./address";

export const place = signal(parsePlace(location.hash));
addEventListener("hashchange", () => {
  place.value = parsePlace(location.hash);
});
