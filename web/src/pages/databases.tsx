/** Databases of the workspace. */

import { Plus } from "lucide-react";
import { useState } from "react";
import { Link, useNavigate } from "react-router";
import { api, queries, useCan, useDatabases } from "../api";
import { ago } from "../format";
import { Button, Card, Code, Empty, Field, Loaded, PageHead, Status, Table, useAct } from "../ui/basics";
import { Modal } from "../ui/dialogs";

export default function Databases() {
  const query = useDatabases();
  const can = useCan();
  const [creating, setCreating] = useState(false);
  return (
    <>
      <PageHead title="Databases">
        {can("sandboxes") && (
          <Button kind="primary" onClick={() => setCreating(true)}>
            <Plus />
            Create database
          </Button>
        )}
      </PageHead>
      <Loaded query={query}>
        {(all) => (
          <Card flush>
            <Table
              head={["Database", "State", "Size", "Branch of", "Created"]}
              empty={
                <Empty title="No databases yet">
                  A database is PostgreSQL in its own machine. It sleeps when idle and branches in
                  seconds.
                </Empty>
              }
              rows={all.map((database) => ({
                key: database.id,
                cells: [
                  <Link to={`/databases/${database.id}`}>
                    <b>{database.label ?? database.id}</b>{" "}
                    {database.label && <span className="mono faint">{database.id}</span>}
                  </Link>,
                  <Status value={database.status} />,
                  database.size ?? "–",
                  database.cloned_from ? (
                    <Link className="link" to={`/databases/${database.cloned_from}`}>
                      {all.find(({ id }) => id === database.cloned_from)?.label ?? database.cloned_from}
                    </Link>
                  ) : (
                    "–"
                  ),
                  ago(database.created_at),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
      {creating && <CreateDatabase onClose={() => setCreating(false)} />}
    </>
  );
}

function CreateDatabase({ onClose }: { onClose: () => void }) {
  const [label, setLabel] = useState("");
  const [always, setAlways] = useState(false);
  const [busy, setBusy] = useState(false);
  const navigate = useNavigate();
  const act = useAct();
  const create = async (): Promise<void> => {
    setBusy(true);
    await act(async () => {
      const database = await api.databases.create({
        ...(label ? { label } : {}),
        ...(always ? { alwaysOn: true } : {}),
      });
      void queries.invalidateQueries({ queryKey: ["databases"] });
      void navigate(`/databases/${database.id}`);
    });
    setBusy(false);
  };
  const flags = [label && `--label ${label}`, always && "--always-on"].filter(Boolean).join(" ");
  return (
    <Modal title="Create database" open onClose={onClose}>
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
            value={label}
            onChange={(event) => setLabel(event.target.value)}
          />
        </Field>
        <label className="row">
          <input
            type="checkbox"
            className="check"
            checked={always}
            onChange={(event) => setAlways(event.target.checked)}
          />
          Never sleep
        </label>
        <Code text={`pandastack db create ${flags}`.trim()} />
        <div className="actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={busy}>
            {busy ? "Creating" : "Create database"}
          </Button>
        </div>
      </form>
    </Modal>
  );
}
