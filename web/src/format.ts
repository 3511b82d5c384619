/** Formats values for people. */

const BYTES = ["B", "KB", "MB", "GB", "TB"];

export function bytes(count: number | undefined): string {
  let value = count ?? 0;
  let unit = 0;
  while (value >= 1024 && unit < BYTES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(value >= 100 || unit === 0 ? 0 : 1)} ${BYTES[unit]}`;
}

export function memory(mb: number | undefined): string {
  return mb === undefined ? "–" : mb % 1024 === 0 ? `${mb / 1024} GB` : `${mb} MB`;
}

/** Time since, or until, an instant. */
export function ago(at: string | undefined, now = Date.now()): string {
  if (!at) return "–";
  const seconds = Math.round((now - Date.parse(at)) / 1000);
  const text = span(Math.abs(seconds));
  return Math.abs(seconds) < 5 ? "just now" : seconds > 0 ? `${text} ago` : `in ${text}`;
}

export function span(seconds: number): string {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

export function millis(ms: number | undefined): string {
  return ms === undefined ? "–" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

export function clock(at: string | undefined): string {
  return at
    ? new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" })
    : "";
}

export function when(at: string | undefined): string {
  return at ? new Date(at).toLocaleString() : "–";
}

/** Splits a field name of the API into words: `cpu_ms` becomes `cpu ms`. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** A short form of an id. */
export function short(id: string | undefined): string {
  return id ? (id.length > 14 ? id.slice(0, 13) : id) : "–";
}
