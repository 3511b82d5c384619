/** Variables and names of an app. */

import { useQuery } from "@tanstack/react-query";
import { Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, useCan } from "../api";
import { Button, Card, Empty, Problem, Status, Table, useAct } from "../ui/basics";
import { ConfirmByName } from "../ui/dialogs";

export function Environment({ name }: { name: string }) {
  const list = useQuery({ queryKey: ["apps", name, "env"], queryFn: () => api.apps.listEnv(name) });
  const [form, setForm] = useState({ key: "", value: "", secret: true });
  const [removing, setRemoving] = useState<string>();
  const act = useAct();
  const can = useCan();
  const add = (): Promise<boolean> =>
    act(async () => {
      await api.apps.setEnv(name, form.key, form.value, { secret: form.secret });
      setForm({ key: "", value: "", secret: true });
      await list.refetch();
    }, "Variable set. It takes effect with the next deployment or restart.");
  return (
    <Card title="Environment" flush>
      <Problem error={list.error} />
      <Table
        head={["Variable", "Value", "Scope", ""]}
        empty={<Empty title="No variables yet" />}
        rows={(list.data ?? []).map((entry) => ({
          key: String(entry.key),
          cells: [
            <code>{String(entry.key)}</code>,
            <span className="mono muted">{entry.secret ? "secret" : String(entry.value ?? "")}</span>,
            <span className="muted">
              {[entry.scope, entry.stage].filter((part) => part && part !== "all").join(" · ") ||
                "everywhere"}
            </span>,
            can("sandboxes") && (
              <Button
                kind="s ghost danger icon"
                aria-label={`Remove ${String(entry.key)}`}
                onClick={() => setRemoving(String(entry.key))}
              >
                <Trash2 />
              </Button>
            ),
          ],
        }))}
      />
      {can("sandboxes") && (
        <form
          className="row wrap body"
          style={{ padding: 14, borderTop: "1px solid var(--border)" }}
          onSubmit={(event) => {
            event.preventDefault();
            void add();
          }}
        >
          <input
            className="input mono"
            style={{ flex: 1, minWidth: 140 }}
            aria-label="Variable"
            placeholder="NAME"
            required
            value={form.key}
            onChange={(event) => setForm({ ...form, key: event.target.value })}
          />
          <input
            className="input mono"
            style={{ flex: 2, minWidth: 180 }}
            aria-label="Value"
            placeholder="value"
            value={form.value}
            onChange={(event) => setForm({ ...form, value: event.target.value })}
          />
          <label className="row">
            <input
              type="checkbox"
              className="check"
              checked={form.secret}
              onChange={(event) => setForm({ ...form, secret: event.target.checked })}
            />
            Secret
          </label>
          <Button type="submit">
            <Plus />
            Set
          </Button>
        </form>
      )}
      <ConfirmByName
        title="Remove this variable?"
        hint="It is removed with the next deployment or restart."
        name={removing ?? ""}
        action="Remove"
        open={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        onConfirm={async () => {
          await api.apps.unsetEnv(name, removing ?? "");
          await list.refetch();
        }}
      />
    </Card>
  );
}

export function Domains({ name }: { name: string }) {
  const list = useQuery({ queryKey: ["apps", name, "domains"], queryFn: () => api.apps.domains(name) });
  const [domain, setDomain] = useState("");
  const [removing, setRemoving] = useState<string>();
  const act = useAct();
  const can = useCan();
  const add = (): Promise<boolean> =>
    act(async () => {
      await api.apps.addDomain(name, domain);
      setDomain("");
      await list.refetch();
    }, "Added");
  return (
    <Card title="Domains" flush>
      <Problem error={list.error} />
      <Table
        head={["Domain", "State", "DNS", ""]}
        empty={<Empty title="No custom domains yet" />}
        rows={(list.data ?? []).map((entry) => ({
          key: String(entry.domain),
          cells: [
            <b>{String(entry.domain)}</b>,
            <Status value={String(entry.status)} />,
            <span className="muted">{String(entry.dns_note ?? "")}</span>,
            can("sandboxes") && (
              <Button
                kind="s ghost danger icon"
                aria-label={`Remove ${String(entry.domain)}`}
                onClick={() => setRemoving(String(entry.domain))}
              >
                <Trash2 />
              </Button>
            ),
          ],
        }))}
      />
      {can("sandboxes") && (
        <form
          className="row"
          style={{ padding: 14, borderTop: "1px solid var(--border)" }}
          onSubmit={(event) => {
            event.preventDefault();
            void add();
          }}
        >
          <input
            className="input"
            aria-label="Domain"
            placeholder="www.example.com"
            required
            value={domain}
            onChange={(event) => setDomain(event.target.value)}
          />
          <Button type="submit">
            <Plus />
            Add
          </Button>
        </form>
      )}
      <ConfirmByName
        title="Remove this domain?"
        hint="The app no longer receives its requests."
        name={removing ?? ""}
        action="Remove"
        open={removing !== undefined}
        onClose={() => setRemoving(undefined)}
        onConfirm={async () => {
          await api.apps.removeDomain(name, removing ?? "");
          await list.refetch();
        }}
      />
    </Card>
  );
}
