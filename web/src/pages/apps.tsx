/** Apps of the workspace. */

import { ExternalLink, Plus } from "lucide-react";
import { useState } from "react";
import { Link, useNavigate } from "react-router";
import { api, queries, useApps, useCan } from "../api";
import { ago } from "../format";
import { Button, Card, Code, Empty, Field, Loaded, PageHead, Status, Table, useAct } from "../ui/basics";
import { Modal } from "../ui/dialogs";

export default function Apps() {
  const query = useApps();
  const can = useCan();
  const [creating, setCreating] = useState(false);
  return (
    <>
      <PageHead title="Apps">
        {can("sandboxes") && (
          <Button kind="primary" onClick={() => setCreating(true)}>
            <Plus />
            Create app
          </Button>
        )}
      </PageHead>
      <Loaded query={query}>
        {(all) => (
          <Card flush>
            <Table
              head={["App", "State", "Framework", "Address", "Changed"]}
              empty={
                <Empty title="No apps yet">
                  Deploy a directory: <code>pandastack app deploy NAME</code>
                </Empty>
              }
              rows={all.map((app) => ({
                key: app.id,
                cells: [
                  <Link to={`/apps/${app.name}`}>
                    <b>{app.name}</b>
                  </Link>,
                  <Status value={app.status} />,
                  app.framework ?? "–",
                  app.url ? (
                    <a className="link row" href={app.url} target="_blank" rel="noreferrer">
                      <span className="cut">{app.url}</span>
                      <ExternalLink size={13} />
                    </a>
                  ) : (
                    "–"
                  ),
                  ago(app.updated_at),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
      {creating && <CreateApp onClose={() => setCreating(false)} />}
    </>
  );
}

function CreateApp({ onClose }: { onClose: () => void }) {
  const [form, setForm] = useState({ name: "", git_url: "", git_branch: "" });
  const navigate = useNavigate();
  const act = useAct();
  const create = (): Promise<boolean> =>
    act(async () => {
      const { name, git_url, git_branch } = form;
      await api.apps.create({ name, ...(git_url ? { git_url } : {}), ...(git_branch ? { git_branch } : {}) });
      if (git_url) await api.apps.deploy(name);
      await queries.invalidateQueries({ queryKey: ["apps"] });
      void navigate(`/apps/${name}`);
    });
  return (
    <Modal title="Create app" open onClose={onClose}>
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
            required
            value={form.name}
            onChange={(event) => setForm({ ...form, name: event.target.value })}
          />
        </Field>
        <Field label="Repository" hint="Optional; without one, deploy a directory from the command line">
          <input
            className="input"
            type="url"
            placeholder="https://…"
            value={form.git_url}
            onChange={(event) => setForm({ ...form, git_url: event.target.value })}
          />
        </Field>
        <Field label="Branch">
          <input
            className="input"
            placeholder="The repository's default"
            value={form.git_branch}
            onChange={(event) => setForm({ ...form, git_branch: event.target.value })}
          />
        </Field>
        <Code text={`pandastack app deploy ${form.name || "NAME"}`} />
        <div className="actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit">
            Create app
          </Button>
        </div>
      </form>
    </Modal>
  );
}
