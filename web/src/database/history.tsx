/** The past of a database: restorable periods, and restores. */

import { useQuery } from "@tanstack/react-query";
import { History as HistoryIcon, ShieldCheck } from "lucide-react";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api, queries, useCan } from "../api";
import { ago, bytes, millis, when } from "../format";
import { Button, Card, Empty, Field, Fields, Loaded, Status, Table, useAct } from "../ui/basics";
import { Timeline } from "../ui/timeline";

/** A time for an input of kind `datetime-local`. */
function localOf(at: Date): string {
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

export function History({ id }: { id: string }) {
  const query = useQuery({
    queryKey: ["databases", id, "backups"],
    queryFn: () => api.databases.backups(id),
  });
  const [picked, setPicked] = useState<Date>();
  const [label, setLabel] = useState("");
  const [busy, setBusy] = useState<string>();
  const navigate = useNavigate();
  const act = useAct();
  const can = useCan();
  const run = async (what: string, work: () => Promise<unknown>, done?: string): Promise<void> => {
    setBusy(what);
    await act(work, done);
    setBusy(undefined);
    void query.refetch();
  };
  const restore = (): Promise<void> =>
    run("restore", async () => {
      if (!picked) return;
      const database = await api.databases.restore(id, picked, label ? { label } : {});
      await queries.invalidateQueries({ queryKey: ["databases"] });
      void navigate(`/databases/${database.id}`);
    });
  return (
    <Loaded query={query}>
      {(backups) => (
        <div className="stack">
          <Card title="Timeline" actions={<Status value={backups.healthy ? "ok" : "failed"} />}>
            {backups.restorable.length === 0 ? (
              <Empty title="Nothing to restore yet">You can restore after the first base backup.</Empty>
            ) : (
              <>
                <Timeline
                  periods={backups.restorable}
                  points={backups.base_backups.map((base) => ({
                    key: base.name,
                    at: base.finished_at,
                    label: `Base backup, ${bytes(base.size_bytes)}`,
                  }))}
                  picked={picked?.toISOString()}
                  onTime={can("sandboxes") ? setPicked : undefined}
                />
                {can("sandboxes") && (
                  <form
                    className="grid"
                    style={{ alignItems: "end", marginTop: 14 }}
                    onSubmit={(event) => {
                      event.preventDefault();
                      void restore();
                    }}
                  >
                    <Field label="Restore to" hint="Click the timeline, or choose a time">
                      <input
                        className="input"
                        type="datetime-local"
                        step={1}
                        value={picked ? localOf(picked) : ""}
                        onChange={(event) =>
                          setPicked(event.target.value ? new Date(event.target.value) : undefined)
                        }
                      />
                    </Field>
                    <Field label="Name of the new database" hint="The current database is not changed">
                      <input
                        className="input"
                        value={label}
                        onChange={(event) => setLabel(event.target.value)}
                      />
                    </Field>
                    <div>
                      <Button kind="primary" type="submit" disabled={!picked || busy !== undefined}>
                        <HistoryIcon />
                        {busy === "restore" ? "Restoring" : "Restore"}
                      </Button>
                    </div>
                  </form>
                )}
              </>
            )}
          </Card>
          <Card
            title="Backups"
            flush
            actions={
              can("sandboxes") && (
                <>
                  <Button
                    kind="s"
                    disabled={busy !== undefined}
                    onClick={() => void run("backup", () => api.databases.backUp(id), "Base backup taken")}
                  >
                    {busy === "backup" ? "Backing up" : "Back up now"}
                  </Button>
                  <Button
                    kind="s"
                    disabled={busy !== undefined}
                    onClick={() => void run("drill", () => api.databases.drill(id), "Restored and checked")}
                  >
                    <ShieldCheck />
                    {busy === "drill" ? "Testing" : "Test a restore"}
                  </Button>
                </>
              )
            }
          >
            <Table
              head={["Base backup", "Finished", "Size"]}
              empty={<Empty title="No base backups yet" />}
              rows={backups.base_backups.map((base) => ({
                key: base.name,
                cells: [
                  <span className="mono">{base.name}</span>,
                  <span title={when(base.finished_at)}>{ago(base.finished_at)}</span>,
                  bytes(base.size_bytes),
                ],
              }))}
            />
          </Card>
          <Card title="Continuous archive">
            <Fields
              of={[
                ["Last archived", ago(backups.last_archived_at)],
                ["Behind by", bytes(backups.lag_bytes)],
                ["Kept for", `${backups.retention_days} days`],
                [
                  "Last test",
                  backups.last_drill
                    ? `${backups.last_drill.ok ? "passed" : "failed"} ${ago(backups.last_drill.at)}, took ${millis(backups.last_drill.took_ms)}`
                    : "–",
                ],
                ["Problem", backups.error ?? "–"],
              ]}
            />
          </Card>
        </div>
      )}
    </Loaded>
  );
}
