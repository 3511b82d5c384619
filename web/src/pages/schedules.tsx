/** Schedules: when they run next, how they ran, and running one now. */

import { useQuery } from "@tanstack/react-query";
import { Pause, Play, Trash2 } from "lucide-react";
import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, queries, useCan } from "../api";
import { ago, millis, span, when } from "../format";
import { Button, Card, Code, Empty, Fields, Loaded, PageHead, Status, Table, useAct } from "../ui/basics";
import { ConfirmByName } from "../ui/dialogs";

const timing = (item: { cron?: unknown; every_seconds?: unknown; at?: unknown }): string =>
  item.cron
    ? String(item.cron)
    : item.every_seconds
      ? `every ${span(Number(item.every_seconds))}`
      : item.at
        ? `once, ${when(String(item.at))}`
        : "–";

export default function Schedules() {
  const { id } = useParams();
  const list = useQuery({ queryKey: ["schedules"], queryFn: () => api.schedules.list() });
  if (id) return <SchedulePage key={id} id={id} />;
  return (
    <>
      <PageHead title="Schedules" />
      <Loaded query={list}>
        {(all) => (
          <Card flush>
            <Table
              head={["Schedule", "State", "When", "Runs", "Next run", "Last run"]}
              empty={
                <Empty title="No schedules yet">
                  <code>pandastack schedule create --help</code>
                </Empty>
              }
              rows={all.map((item) => ({
                key: item.id,
                cells: [
                  <Link to={`/schedules/${item.id}`}>
                    <b>{item.name}</b>
                  </Link>,
                  <Status value={item.paused ? "paused" : "active"} />,
                  <code>{timing(item)}</code>,
                  String((item.target as { type?: string } | undefined)?.type ?? ""),
                  ago(item.next_run_at as string | undefined),
                  ago(item.last_run_at as string | undefined),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
    </>
  );
}

function SchedulePage({ id }: { id: string }) {
  const query = useQuery({ queryKey: ["schedules", id], queryFn: () => api.schedules.get(id) });
  const runs = useQuery({ queryKey: ["schedules", id, "runs"], queryFn: () => api.schedules.runs(id) });
  const next = useQuery({ queryKey: ["schedules", id, "next"], queryFn: () => api.schedules.next(id) });
  const [deleting, setDeleting] = useState(false);
  const can = useCan();
  const act = useAct();
  const navigate = useNavigate();
  const reload = (): Promise<void> => queries.invalidateQueries({ queryKey: ["schedules"] });
  return (
    <Loaded query={query}>
      {(item) => (
        <>
          <PageHead title={item.name}>
            <Status value={item.paused ? "paused" : "active"} />
            {can("sandboxes") && (
              <>
                <Button
                  kind="primary"
                  onClick={() => void act(() => api.schedules.trigger(id).then(reload), "Started")}
                >
                  <Play />
                  Run now
                </Button>
                {item.paused ? (
                  <Button onClick={() => void act(() => api.schedules.resume(id).then(reload), "Resumed")}>
                    <Play />
                    Resume
                  </Button>
                ) : (
                  <Button onClick={() => void act(() => api.schedules.pause(id).then(reload), "Paused")}>
                    <Pause />
                    Pause
                  </Button>
                )}
                <Button kind="danger icon" aria-label="Delete schedule" onClick={() => setDeleting(true)}>
                  <Trash2 />
                </Button>
              </>
            )}
          </PageHead>
          <div className="grid">
            <Card title="Details">
              <Fields
                of={[
                  ["When", <code>{timing(item)}</code>],
                  ["Time zone", String(item.timezone ?? "–")],
                  ["Target", <Code text={JSON.stringify(item.target, null, 2)} />],
                ]}
              />
            </Card>
            <Card title="Next runs">
              {(next.data?.items ?? []).length ? (
                <ul>
                  {(next.data?.items ?? []).map((at) => (
                    <li key={String(at)}>
                      {when(String(at))} <span className="muted">{ago(String(at))}</span>
                    </li>
                  ))}
                </ul>
              ) : (
                <p className="muted">None</p>
              )}
            </Card>
          </div>
          <Card title="Runs" flush>
            <Table
              head={["Run", "State", "Due", "Duration", "Result"]}
              empty={<Empty title="No runs yet" />}
              rows={(runs.data ?? []).map((run) => ({
                key: run.id,
                cells: [
                  <span className="mono">{run.id}</span>,
                  <Status value={run.status} />,
                  ago(run.scheduled_for as string | undefined),
                  millis(Number(run.duration_ms ?? 0)),
                  <span className="cut muted" style={{ display: "block", maxWidth: 380 }}>
                    {String(run.error ?? run.stdout ?? "")}
                  </span>,
                ],
              }))}
            />
          </Card>
          <ConfirmByName
            title="Delete this schedule?"
            hint="Its history is deleted, too."
            name={item.name}
            open={deleting}
            onClose={() => setDeleting(false)}
            onConfirm={async () => {
              await api.schedules.delete(id);
              await reload();
              void navigate("/schedules");
            }}
          />
        </>
      )}
    </Loaded>
  );
}
