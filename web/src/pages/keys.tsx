/** API keys, sessions of this console, and their audit log. */

import { useQuery } from "@tanstack/react-query";
import { Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, useMe } from "../api";
import { ago, clock } from "../format";
import { Button, Card, Code, Field, Loaded, PageHead, Table, useAct } from "../ui/basics";
import { ConfirmByName, Modal } from "../ui/dialogs";

export default function Keys() {
  const keys = useQuery({ queryKey: ["keys"], queryFn: () => api.tokens.list() });
  const sessions = useQuery({ queryKey: ["sessions"], queryFn: () => api.console.sessions() });
  const audit = useQuery({ queryKey: ["audit"], queryFn: () => api.audit({ limit: 50 }) });
  const [asking, setAsking] = useState<{ kind: "key" | "session"; name: string }>();
  const [creating, setCreating] = useState(false);
  const mine = useMe().data?.token_prefix;
  return (
    <>
      <PageHead title="Keys and sessions">
        <Button kind="primary" onClick={() => setCreating(true)}>
          <Plus />
          Create key
        </Button>
      </PageHead>
      <Card title="API keys" flush>
        <Loaded query={keys}>
          {(all) => (
            <Table
              head={["Key", "Name", "Role", "Created", "Expires", ""]}
              rows={all.map((key) => ({
                key: key.prefix,
                cells: [
                  <code>{key.prefix}…</code>,
                  <span>
                    {key.label || "–"}
                    {key.prefix === mine && <span className="faint"> · this session</span>}
                  </span>,
                  key.role,
                  ago(key.created_at),
                  key.expires_at ? ago(key.expires_at) : "never",
                  <Button
                    kind="s ghost danger icon"
                    aria-label={`Delete ${key.prefix}`}
                    onClick={() => setAsking({ kind: "key", name: key.prefix })}
                  >
                    <Trash2 />
                  </Button>,
                ],
              }))}
            />
          )}
        </Loaded>
      </Card>
      <Card title="Console sessions" flush>
        <Loaded query={sessions}>
          {(all) => (
            <Table
              head={["Browser", "Key", "Signed in", "Last used", "Ends", ""]}
              rows={all.map((session) => ({
                key: session.id,
                cells: [
                  <span className="cut" style={{ display: "block", maxWidth: 300 }} title={session.browser}>
                    {session.browser}
                  </span>,
                  <code>{session.token_prefix}…</code>,
                  ago(session.created_at),
                  ago(session.last_used_at),
                  ago(session.expires_at),
                  <Button
                    kind="s ghost danger"
                    onClick={() => setAsking({ kind: "session", name: session.id })}
                  >
                    Revoke
                  </Button>,
                ],
              }))}
            />
          )}
        </Loaded>
      </Card>
      <Card title="Audit log" flush>
        <Loaded query={audit}>
          {(all) => (
            <Table
              head={["Time", "Call", "Key", "Result"]}
              rows={all.map((entry) => ({
                key: String(entry.id),
                cells: [
                  <span className="faint num" title={entry.at}>
                    {clock(entry.at)}
                  </span>,
                  <code className="cut" style={{ display: "block", maxWidth: 460 }}>
                    {entry.method} {entry.path}
                  </code>,
                  entry.token_label || entry.token_prefix,
                  <span className="num">{entry.status}</span>,
                ],
              }))}
            />
          )}
        </Loaded>
      </Card>
      {creating && (
        <CreateKey
          onClose={() => {
            setCreating(false);
            void keys.refetch();
          }}
        />
      )}
      <ConfirmByName
        title={asking?.kind === "key" ? "Delete this key?" : "Revoke this session?"}
        hint={
          asking?.kind === "key"
            ? "It stops working immediately, and all sessions opened with it end."
            : "The browser is signed out immediately."
        }
        name={asking?.name ?? ""}
        action={asking?.kind === "key" ? "Delete" : "Revoke"}
        open={asking !== undefined}
        onClose={() => setAsking(undefined)}
        onConfirm={async () => {
          if (asking?.kind === "key") await api.tokens.revoke(asking.name);
          else if (asking) await api.console.revoke(asking.name);
          await Promise.all([keys.refetch(), sessions.refetch()]);
        }}
      />
    </>
  );
}

function CreateKey({ onClose }: { onClose: () => void }) {
  const [form, setForm] = useState({
    label: "",
    role: "developer" as "viewer" | "developer" | "owner",
    days: "",
  });
  const [secret, setSecret] = useState<string>();
  const act = useAct();
  const create = (): Promise<boolean> =>
    act(async () =>
      setSecret(
        (
          await api.tokens.create(form.label, {
            role: form.role,
            ...(form.days ? { expiresInDays: Number(form.days) } : {}),
          })
        ).token,
      ),
    );
  return (
    <Modal
      title={secret ? "Key created" : "Create key"}
      {...(secret ? { hint: "Copy it now. It is not shown again." } : {})}
      open
      onClose={onClose}
    >
      {secret ? (
        <>
          <Code text={secret} />
          <div className="actions">
            <Button kind="primary" onClick={onClose}>
              Done
            </Button>
          </div>
        </>
      ) : (
        <form
          className="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void create();
          }}
        >
          <Field label="Name">
            <input
              className="input"
              autoFocus
              value={form.label}
              onChange={(event) => setForm({ ...form, label: event.target.value })}
            />
          </Field>
          <Field label="Role">
            <select
              className="select"
              value={form.role}
              onChange={(event) => setForm({ ...form, role: event.target.value as typeof form.role })}
            >
              <option value="viewer">viewer: list and describe resources</option>
              <option value="developer">developer: also use all resources</option>
              <option value="owner">owner: also manage keys and defaults</option>
            </select>
          </Field>
          <Field label="Days until it expires" hint="Default: never">
            <input
              className="input"
              inputMode="numeric"
              pattern="[0-9]*"
              value={form.days}
              onChange={(event) => setForm({ ...form, days: event.target.value })}
            />
          </Field>
          <div className="actions">
            <Button onClick={onClose}>Cancel</Button>
            <Button kind="primary" type="submit">
              Create key
            </Button>
          </div>
        </form>
      )}
    </Modal>
  );
}
