// Whether the console may change something; the server refuses it otherwise.
import { signal } from "@preact/signals";

export const allowsChanges = signal(false);
