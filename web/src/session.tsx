/** Signing in. The key goes to the server once and is kept nowhere in the browser. */

import { AuthError } from "@pandastack/sdk";
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useEffect, useState } from "react";
import { api, queries, signedOut, useMe } from "./api";
import { LiveEvents } from "./live";
import { Button, Field, Problem } from "./ui/basics";

export function Session({ children }: { children: ReactNode }) {
  const me = useMe();
  useEffect(() => {
    const out = (): void => void queries.resetQueries({ queryKey: ["me"] });
    signedOut.addEventListener("out", out);
    return () => signedOut.removeEventListener("out", out);
  }, []);
  if (me.data) return <LiveEvents>{children}</LiveEvents>;
  if (me.isPending) return null;
  return <SignIn problem={me.error instanceof AuthError ? undefined : me.error} />;
}

export async function signOut(): Promise<void> {
  await api.console.signOut();
  // A reloaded page remembers nothing.
  location.assign("/console/");
}

function SignIn({ problem }: { problem: unknown }) {
  const [error, setError] = useState<unknown>(problem);
  const [busy, setBusy] = useState(false);
  const provider = async () => (await api.console.loginProvider()) ?? null;
  const login = useQuery({ queryKey: ["login"], queryFn: provider });
  const submit = async (event: FormEvent<HTMLFormElement>): Promise<void> => {
    event.preventDefault();
    const key = String(new FormData(event.currentTarget).get("key") ?? "").trim();
    setBusy(true);
    try {
      const me = await api.console.signIn(key);
      queries.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== "me" });
      queries.setQueryData(["me"], me);
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return (
    <main className="signin">
      <form onSubmit={(event) => void submit(event)}>
        <img src="/console/favicon.svg" alt="" />
        <div className="stack s">
          <h1>Sign in to PandaStack</h1>
          <p className="muted">Use an API key of your workspace.</p>
        </div>
        <Field label="API key" hint="pandastack up writes one to ~/.config/pandastack/config.json">
          <input
            className="input mono"
            name="key"
            type="password"
            required
            autoFocus
            autoComplete="off"
            placeholder="pds_…"
          />
        </Field>
        <Problem error={error} />
        <Button kind="primary" type="submit" disabled={busy}>
          {busy ? "Signing in" : "Sign in"}
        </Button>
        {login.data && (
          <a className="btn" href={login.data.url}>
            Sign in with {login.data.name}
          </a>
        )}
      </form>
    </main>
  );
}
