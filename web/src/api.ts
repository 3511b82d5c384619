/** The page's client, and the cache of its responses. */

import { AuthError, PandaStack, PandaStackError, type SandboxInfo } from "@pandastack/sdk";
import { QueryClient, useQuery } from "@tanstack/react-query";

/** Calls go to the server that served this page, with the browser's session. */
export const api = new PandaStack({ baseUrl: location.origin, session: true });

/** Notified when a call finds that the session is over. */
export const signedOut = new EventTarget();

/** Time for which data counts as fresh without an event; after it, a missed event is made up for. */
const STALE_MS = 60_000;

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: STALE_MS,
      retry: (count, error) =>
        count < 2 && !(error instanceof PandaStackError && (error.status ?? 500) < 500),
    },
  },
});

queries.getQueryCache().subscribe((event) => {
  // `me` is the call with which the page checks; notifying here would loop forever.
  const isMe = event.query.queryKey[0] === "me";
  if (event.type === "updated" && !isMe && event.query.state.error instanceof AuthError)
    signedOut.dispatchEvent(new Event("out"));
});

/** Describes an error in one sentence. */
export function reasonOf(error: unknown): string {
  return error instanceof PandaStackError
    ? error.reason
    : error instanceof Error
      ? error.message
      : String(error);
}

export function useSandboxes() {
  return useQuery({
    queryKey: ["sandboxes"],
    queryFn: async () => (await api.sandboxes.list()).map((sandbox) => sandbox.info),
  });
}

export function useSandbox(id: string) {
  return useQuery({
    queryKey: ["sandbox", id],
    queryFn: async () => (await api.sandboxes.get(id)).info,
    initialData: () => queries.getQueryData<SandboxInfo[]>(["sandboxes"])?.find((info) => info.id === id),
    initialDataUpdatedAt: 0,
  });
}

export function useDatabases() {
  return useQuery({ queryKey: ["databases"], queryFn: () => api.databases.list() });
}

export function useApps() {
  return useQuery({ queryKey: ["apps"], queryFn: () => api.apps.list() });
}

export function useMe() {
  return useQuery({ queryKey: ["me"], queryFn: () => api.me(), retry: false });
}

/** Checks whether the signed-in key has a scope; scopes are ordered from least to most. */
export function useCan(): (scope: "sandboxes" | "admin") => boolean {
  const order = ["read", "sandboxes", "admin"];
  const held = order.indexOf(String(useMe().data?.token_scope ?? "read"));
  return (scope) => held >= order.indexOf(scope);
}
