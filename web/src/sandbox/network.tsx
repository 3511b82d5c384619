/** Network policy of a sandbox. */

import type { NetworkPolicy } from "@pandastack/sdk";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api, useCan } from "../api";
import { Button, Card, Field, Fields, Problem, useAct } from "../ui/basics";

const linesOf = (text: string): string[] =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

export default function Network({ id }: { id: string }) {
  const policy = useQuery({
    queryKey: ["network", id],
    queryFn: async () => (await api.sandboxes.get(id)).network(),
  });
  const metrics = useQuery({
    queryKey: ["metrics", id, "denied"],
    queryFn: async () => (await api.sandboxes.get(id)).metrics(),
  });
  const [form, setForm] = useState({ egress: "all", allow: "", deny: "", registries: false });
  const can = useCan();
  const act = useAct();
  useEffect(() => {
    const { egress = "all", allow = [], deny = [], presets = [] } = policy.data ?? {};
    setForm({
      egress,
      allow: allow.join("\n"),
      deny: deny.join("\n"),
      registries: presets.includes("package-registries"),
    });
  }, [policy.data]);
  const save = async (): Promise<void> => {
    const next: NetworkPolicy = {
      egress: form.egress as "all" | "none",
      allow: linesOf(form.allow),
      deny: linesOf(form.deny),
      presets: form.registries ? ["package-registries"] : [],
    };
    await act(async () => {
      await (await api.sandboxes.get(id)).setNetwork(next);
      await policy.refetch();
    }, "Network policy changed");
  };
  return (
    <div className="grid">
      <Card title="Policy">
        <Problem error={policy.error} />
        <form
          className="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void save();
          }}
        >
          <Field label="Default">
            <select
              className="select"
              value={form.egress}
              onChange={(event) => setForm({ ...form, egress: event.target.value })}
            >
              <option value="all">Allow the public internet</option>
              <option value="none">Allow nothing</option>
            </select>
          </Field>
          <label className="row">
            <input
              type="checkbox"
              className="check"
              checked={form.registries}
              onChange={(event) => setForm({ ...form, registries: event.target.checked })}
            />
            Allow package registries
          </label>
          <Field label="Allow" hint="One per line: api.example.com, *.example.com:443, 10.0.0.0/8">
            <textarea
              className="input mono"
              value={form.allow}
              onChange={(event) => setForm({ ...form, allow: event.target.value })}
            />
          </Field>
          <Field label="Deny" hint="Takes precedence over Allow">
            <textarea
              className="input mono"
              value={form.deny}
              onChange={(event) => setForm({ ...form, deny: event.target.value })}
            />
          </Field>
          {can("sandboxes") && (
            <div className="row">
              <Button kind="primary" type="submit">
                Apply
              </Button>
              <span className="muted">Applies to open connections, too</span>
            </div>
          )}
        </form>
      </Card>
      <Card title="Traffic">
        <Fields of={[["Refused connections", String(metrics.data?.egress_denied ?? 0)]]} />
      </Card>
    </div>
  );
}
