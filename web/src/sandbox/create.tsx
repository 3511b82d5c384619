/** Creating a sandbox: a form, and the same thing as a command and as code. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api, queries } from "../api";
import { Button, Code, Field, useAct } from "../ui/basics";
import { Modal } from "../ui/dialogs";

interface Form {
  template: string;
  name: string;
  lifetime: "ttl" | "persistent";
  ttl: string;
  egress: "all" | "none";
  cpu: string;
  memory: string;
}

const SHOWN: [string, (form: Form) => string][] = [
  ["CLI", command],
  ["Python", python],
  ["TypeScript", typescript],
];

function command({ template, name, lifetime, ttl, egress, cpu, memory }: Form): string {
  const parts = ["pandastack sandbox create", `--template ${template}`];
  if (name)
    parts.push(`--metadata name=${/^[\w.-]+$/.test(name) ? name : `'${name.replaceAll("'", `'"'"'`)}'`}`);
  parts.push(lifetime === "persistent" ? "--persistent" : `--ttl ${ttl}`);
  if (egress === "none") parts.push("--network none");
  if (cpu) parts.push(`--cpu ${cpu}`);
  if (memory) parts.push(`--memory ${memory}`);
  return parts.join(" \\\n  ");
}

function python(form: Form): string {
  const lines = [`template=${JSON.stringify(form.template)}`];
  if (form.name) lines.push(`metadata={"name": ${JSON.stringify(form.name)}}`);
  lines.push(form.lifetime === "persistent" ? "persistent=True" : `ttl_seconds=${form.ttl}`);
  if (form.egress === "none") lines.push('network="none"');
  if (form.cpu) lines.push(`cpu=${form.cpu}`);
  if (form.memory) lines.push(`memory_mb=${form.memory}`);
  return `from pandastack import PandaStack\n\nsandbox = PandaStack().sandboxes.create(\n    ${lines.join(",\n    ")},\n)`;
}

function typescript(form: Form): string {
  const body = JSON.stringify(optionsOf(form), null, 2).replace(/"(\w+)":/g, "$1:");
  return `import { PandaStack } from "@pandastack/sdk";\n\nconst sandbox = await new PandaStack().sandboxes.create(${body});`;
}

function optionsOf(form: Form) {
  return {
    template: form.template,
    ...(form.name ? { metadata: { name: form.name } } : {}),
    ...(form.lifetime === "persistent" ? { persistent: true } : { ttlSeconds: Number(form.ttl) }),
    ...(form.egress === "none" ? { network: "none" as const } : {}),
    ...(form.cpu ? { cpu: Number(form.cpu) } : {}),
    ...(form.memory ? { memoryMb: Number(form.memory) } : {}),
  };
}

export default function CreateSandbox({ onClose }: { onClose: () => void }) {
  const templates = useQuery({ queryKey: ["templates"], queryFn: () => api.templates.list() });
  const [form, setForm] = useState<Form>({
    template: "base",
    name: "",
    lifetime: "ttl",
    ttl: "3600",
    egress: "all",
    cpu: "",
    memory: "",
  });
  const [shown, setShown] = useState(0);
  const [busy, setBusy] = useState(false);
  const navigate = useNavigate();
  const act = useAct();
  const set = (change: Partial<Form>): void => setForm((old) => ({ ...old, ...change }));
  const create = async (): Promise<void> => {
    setBusy(true);
    await act(async () => {
      const sandbox = await api.sandboxes.create(optionsOf(form));
      void queries.invalidateQueries({ queryKey: ["sandboxes"] });
      void navigate(`/sandboxes/${sandbox.id}`);
    });
    setBusy(false);
  };
  return (
    <Modal title="Create sandbox" wide open onClose={onClose}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void create();
        }}
      >
        <div className="grid">
          <Field
            label="Template"
            hint={
              templates.data?.find(({ name }) => name === form.template)?.description ??
              "Template to create from"
            }
          >
            <select
              className="select"
              value={form.template}
              onChange={(event) => set({ template: event.target.value })}
            >
              {(templates.data ?? [{ name: "base" }]).map(({ name }) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </Field>
          <Field label="Name" hint="Optional; stored as metadata">
            <input
              className="input"
              value={form.name}
              onChange={(event) => set({ name: event.target.value })}
            />
          </Field>
          <Field label="Lifetime">
            <select
              className="select"
              value={form.lifetime}
              onChange={(event) => set({ lifetime: event.target.value as Form["lifetime"] })}
            >
              <option value="ttl">Deleted after a time</option>
              <option value="persistent">Persistent: sleeps when idle</option>
            </select>
          </Field>
          {form.lifetime === "ttl" && (
            <Field label="TTL in seconds">
              <input
                className="input"
                inputMode="numeric"
                pattern="[0-9]+"
                required
                value={form.ttl}
                onChange={(event) => set({ ttl: event.target.value })}
              />
            </Field>
          )}
          <Field label="Network">
            <select
              className="select"
              value={form.egress}
              onChange={(event) => set({ egress: event.target.value as Form["egress"] })}
            >
              <option value="all">Internet access</option>
              <option value="none">No network access</option>
            </select>
          </Field>
          <Field label="Processors" hint="Default: from the template">
            <input
              className="input"
              inputMode="numeric"
              pattern="[0-9]*"
              value={form.cpu}
              onChange={(event) => set({ cpu: event.target.value })}
            />
          </Field>
          <Field label="Memory in MB" hint="A multiple of 128. Default: from the template">
            <input
              className="input"
              inputMode="numeric"
              pattern="[0-9]*"
              value={form.memory}
              onChange={(event) => set({ memory: event.target.value })}
            />
          </Field>
        </div>
        <div className="stack s">
          <div className="row" role="group" aria-label="As code">
            {SHOWN.map(([label], at) => (
              <Button
                key={label}
                kind={`s ${at === shown ? "" : "ghost"}`}
                aria-pressed={at === shown}
                onClick={() => setShown(at)}
              >
                {label}
              </Button>
            ))}
          </div>
          <Code text={SHOWN[shown]?.[1](form) ?? ""} />
        </div>
        <div className="actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={busy}>
            {busy ? "Creating" : "Create sandbox"}
          </Button>
        </div>
      </form>
    </Modal>
  );
}
