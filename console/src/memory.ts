// What the browser remembers for the user; a browser that forbids it forgets.
export function remembered(name: string): string | null {
  try {
    return localStorage.getItem(`suwi-${name}`);
  } catch {
    return null;
  }
}

export function remember(name: string, value: string): void {
  try {
    localStorage.setItem(`suwi-${name}`, value);
  } catch {
    // It is only a preference.
  }
}
