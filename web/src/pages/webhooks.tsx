/** Webhooks: URLs that receive events, and what was sent to them. */

import { useQuery } from "@tanstack/react-query";
import { Plus, RotateCw, Send, Trash2 } from "lucide-react";
import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, queries, useCan } from "../api";
import { ago } from "../format";
import {
  Button,
  Card,
  Code,
  Empty,
  Field,
  Fields,
  Loaded,
  PageHead,
  Status,
  Table,
  useAct,
} from "../ui/basics";
import { ConfirmByName, Modal } from "../ui/dialogs";

type Hook = Awaited<ReturnType<typeof api.webhooks.get>>;

const stateOf = (hook: Hook): string =>
  hook.enabled === false ? "disabled" : hook.failing_since ? "failing" : "active";
const eventsOf = (hook: Hook): string => (hook.events?.length ? hook.events.join(", ") : "all events");
const reload = (): Promise<void> => queries.invalidateQueries({ queryKey: ["webhooks"] });

export default function Webhooks() {
  const { id } = useParams();
  const list = useQuery({ queryKey: ["webhooks"], queryFn: () => api.webhooks.list() });
  const [creating, setCreating] = useState(false);
  const can = useCan();
  if (id) return <WebhookPage key={id} id={id} />;
  return (
    <>
      <PageHead title="Webhooks">
        {can("sandboxes") && (
          <Button kind="primary" onClick={() => setCreating(true)}>
            <Plus />
            Create webhook
          </Button>
        )}
      </PageHead>
      <Loaded query={list}>
        {(all) => (
          <Card flush>
            <Table
              head={["URL", "State", "Events", "Description", "Created"]}
              empty={
                <Empty title="No webhooks yet">A webhook receives events, such as failed sandboxes.</Empty>
              }
              rows={all.map((hook) => ({
                key: hook.id,
                cells: [
                  <Link to={`/webhooks/${hook.id}`}>
                    <b className="cut" style={{ display: "block", maxWidth: 340 }}>
                      {hook.url}
                    </b>
                  </Link>,
                  <Status value={stateOf(hook)} />,
                  eventsOf(hook),
                  hook.description ?? "–",
                  ago(hook.created_at),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
      {creating && <CreateWebhook onClose={() => setCreating(false)} />}
    </>
  );
}

function WebhookPage({ id }: { id: string }) {
  const query = useQuery({ queryKey: ["webhooks", id], queryFn: () => api.webhooks.get(id) });
  const sent = useQuery({
    queryKey: ["webhooks", id, "deliveries"],
    queryFn: () => api.webhooks.deliveries(id),
  });
  const [deleting, setDeleting] = useState(false);
  const can = useCan();
  const act = useAct();
  const navigate = useNavigate();
  const change = (enabled: boolean): Promise<boolean> =>
    act(() => api.webhooks.update(id, { enabled }).then(reload), enabled ? "Enabled" : "Disabled");
  const redeliver = (delivery: number): void =>
    void act(() => api.webhooks.redeliver(id, delivery).then(reload), "Sent");
  return (
    <Loaded query={query}>
      {(hook) => (
        <>
          <PageHead title={hook.url}>
            <Status value={stateOf(hook)} />
            {can("sandboxes") && (
              <>
                {hook.enabled === false ? (
                  <Button kind="primary" onClick={() => void change(true)}>
                    Enable
                  </Button>
                ) : (
                  <>
                    <Button
                      kind="primary"
                      onClick={() => void act(() => api.webhooks.test(id).then(reload), "Sent")}
                    >
                      <Send />
                      Send test
                    </Button>
                    <Button onClick={() => void change(false)}>Disable</Button>
                  </>
                )}
                <Button kind="danger" onClick={() => setDeleting(true)}>
                  <Trash2 />
                  Delete
                </Button>
              </>
            )}
          </PageHead>
          <Card>
            <Fields
              of={[
                ["ID", <code>{hook.id}</code>],
                ["Events", eventsOf(hook)],
                ["Description", hook.description ?? "–"],
                ["Created", ago(hook.created_at)],
                ["Failing since", hook.failing_since ? ago(hook.failing_since) : "–"],
                ["Disabled because", hook.disabled_reason ?? "–"],
              ]}
            />
          </Card>
          <Card title="Deliveries" flush>
            <Loaded query={sent}>
              {(all) => (
                <Table
                  head={["Event", "State", "Attempts", "Time", "Result", ""]}
                  empty={<Empty title="Nothing was sent yet" />}
                  rows={all.map((one) => ({
                    key: String(one.id),
                    cells: [
                      <code>{one.type}</code>,
                      <Status value={one.state} />,
                      <span className="num">{one.attempts}</span>,
                      ago(one.created_at),
                      one.result ?? "–",
                      can("sandboxes") && one.state !== "pending" ? (
                        <Button
                          kind="s ghost icon"
                          aria-label={`Send ${one.type} again`}
                          onClick={() => redeliver(one.id)}
                        >
                          <RotateCw />
                        </Button>
                      ) : null,
                    ],
                  }))}
                />
              )}
            </Loaded>
          </Card>
          <ConfirmByName
            title="Delete this webhook?"
            hint="Events are no longer sent to it, and its deliveries are removed."
            name={hook.id}
            action="Delete"
            open={deleting}
            onClose={() => setDeleting(false)}
            onConfirm={async () => {
              await api.webhooks.delete(id);
              await reload();
              void navigate("/webhooks");
            }}
          />
        </>
      )}
    </Loaded>
  );
}

function CreateWebhook({ onClose }: { onClose: () => void }) {
  const [form, setForm] = useState({ url: "", events: "", description: "" });
  const [secret, setSecret] = useState<string>();
  const act = useAct();
  const create = (): Promise<boolean> =>
    act(async () => {
      const events = form.events.split(/[\s,]+/).filter(Boolean);
      const { url, description } = form;
      const made = await api.webhooks.create({ url, events, ...(description ? { description } : {}) });
      setSecret(made.secret);
      await reload();
    });
  return (
    <Modal
      title={secret ? "Webhook created" : "Create webhook"}
      {...(secret ? { hint: "Copy its secret now. It is not shown again." } : {})}
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
          <Field label="URL">
            <input
              className="input"
              type="url"
              required
              autoFocus
              value={form.url}
              onChange={(event) => setForm({ ...form, url: event.target.value })}
            />
          </Field>
          <Field label="Events" hint="Such as sandbox.failed, app.*. Default: all">
            <input
              className="input"
              value={form.events}
              onChange={(event) => setForm({ ...form, events: event.target.value })}
            />
          </Field>
          <Field label="Description">
            <input
              className="input"
              value={form.description}
              onChange={(event) => setForm({ ...form, description: event.target.value })}
            />
          </Field>
          <div className="actions">
            <Button onClick={onClose}>Cancel</Button>
            <Button kind="primary" type="submit">
              Create webhook
            </Button>
          </div>
        </form>
      )}
    </Modal>
  );
}
