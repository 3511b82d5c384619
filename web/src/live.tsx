/**
 * Events of the workspace, followed while a tab is visible.
 *
 * One stream per visible tab: a hidden tab closes its stream, because browsers open few connections
 * to one server. Each event invalidates cached responses; a burst causes one reload.
 */

import type { SandboxEvent } from "@pandastack/sdk";
import { createContext, type ReactNode, useContext, useEffect, useState } from "react";
import { api, queries } from "./api";

/** Events kept for the overview. */
const EVENTS_KEPT_MAX = 200;
/** Minimum interval between reloads. */
const RELOAD_MS = 400;
/** Interval between attempts to follow. */
const RETRY_MS = 2_000;

interface Live {
  connected: boolean;
  events: SandboxEvent[];
}

const LiveContext = createContext<Live>({ connected: false, events: [] });

export const useLive = (): Live => useContext(LiveContext);

export function LiveEvents({ children }: { children: ReactNode }) {
  const [live, setLive] = useState<Live>({ connected: false, events: [] });
  useEffect(() => {
    const unmounted = new AbortController();
    void follow(unmounted.signal, setLive);
    return () => unmounted.abort();
  }, []);
  return <LiveContext value={live}>{children}</LiveContext>;
}

async function follow(signal: AbortSignal, set: (change: (live: Live) => Live) => void): Promise<void> {
  let last: number | undefined;
  const seen = (events: SandboxEvent[]): void => {
    last = events.at(-1)?.id ?? last;
    set((live) => ({ ...live, events: [...live.events, ...events].slice(-EVENTS_KEPT_MAX) }));
  };
  while (!signal.aborted) {
    await untilVisible(signal);
    const hidden = hiddenSignal(signal);
    try {
      if (last === undefined) seen(await api.events({ tail: 60 }));
      set((live) => ({ ...live, connected: true }));
      for await (const event of api.followEvents({ after: last ?? 0, signal: hidden })) {
        seen([event]);
        reload(event);
      }
    } catch {
      // After any error the stream is opened again below; calls of the page report their own
      // errors.
    }
    if (signal.aborted) return;
    set((live) => ({ ...live, connected: false }));
    if (!document.hidden) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

let pending: Set<string> | undefined;

/** Invalidates the data that an event changed. */
function reload(event: SandboxEvent): void {
  if (!pending) {
    const changed = (pending = new Set());
    setTimeout(() => {
      pending = undefined;
      for (const key of ["sandboxes", "databases", "apps", "snapshots", "volumes", "hosts"])
        void queries.invalidateQueries({ queryKey: [key] });
      for (const id of changed) void queries.invalidateQueries({ queryKey: ["sandbox", id] });
    }, RELOAD_MS);
  }
  if (event.sandbox_id) pending.add(event.sandbox_id);
}

function untilVisible(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const look = (): void => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

/** Aborted when the tab is hidden, or with `signal`. */
function hiddenSignal(signal: AbortSignal): AbortSignal {
  const controller = new AbortController();
  const look = (): void => {
    if (document.hidden || signal.aborted) controller.abort();
  };
  document.addEventListener("visibilitychange", look, { signal: controller.signal });
  signal.addEventListener("abort", look, { signal: controller.signal });
  return controller.signal;
}
