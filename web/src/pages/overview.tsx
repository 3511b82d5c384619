/** Overview: running, sleeping and failed sandboxes, and current events. */

import { useQuery } from "@tanstack/react-query";
import { Plus } from "lucide-react";
import { Link } from "react-router";
import { api, useApps, useCan, useDatabases, useSandboxes } from "../api";
import { bytes, clock, short, span, words } from "../format";
import { useLive } from "../live";
import { Card, Empty, PageHead, Problem, Status } from "../ui/basics";

const count = (items: { status: string }[] | undefined, ...states: string[]): number =>
  (items ?? []).filter(({ status }) => states.includes(status)).length;

export function Overview() {
  const [sandboxes, databases, apps] = [useSandboxes(), useDatabases(), useApps()];
  const can = useCan();
  const all = [...(sandboxes.data ?? []), ...(databases.data ?? []), ...(apps.data ?? [])];
  const failing = [
    ...(sandboxes.data ?? [])
      .filter(({ status }) => status === "failed")
      .map((info) => ({
        key: info.id,
        href: `/sandboxes/${info.id}`,
        name: info.metadata.name ?? info.id,
        why: info.failure,
        status: "failed",
      })),
    ...(databases.data ?? [])
      .filter(({ status }) => ["failed", "read_only"].includes(status))
      .map((database) => ({
        key: database.id,
        href: `/databases/${database.id}`,
        name: database.label ?? database.id,
        why: database.error,
        status: database.status,
      })),
    ...(apps.data ?? [])
      .filter(({ status }) => status === "error")
      .map((app) => ({
        key: app.id,
        href: `/apps/${app.name}`,
        name: app.name,
        why: undefined,
        status: "error",
      })),
  ];
  return (
    <>
      <PageHead title="Overview">
        {can("sandboxes") && (
          <Link className="btn primary" to="/sandboxes?create">
            <Plus />
            Create sandbox
          </Link>
        )}
      </PageHead>
      <Problem error={sandboxes.error} />
      <div className="grid tiles">
        <Tile
          to="/sandboxes?state=running"
          label="Sandboxes running"
          value={count(sandboxes.data, "running")}
        />
        <Tile
          to="/sandboxes?state=hibernated"
          label="Sandboxes sleeping"
          value={count(sandboxes.data, "hibernated", "paused")}
        />
        <Tile to="/databases" label="Databases" value={databases.data?.length ?? 0} />
        <Tile to="/apps" label="Apps" value={apps.data?.length ?? 0} />
        <Tile to="#failing" label="Need attention" value={failing.length} />
      </div>
      {failing.length > 0 && (
        <Card title="Needs attention" flush>
          <div className="feed" id="failing">
            {failing.map(({ key, href, name, why, status }) => (
              <Link key={key} to={href}>
                <Status value={status} />
                <b className="cut">{name}</b>
                <span className="cut muted">{why ?? "Open the sandbox to see the reason"}</span>
              </Link>
            ))}
          </div>
        </Card>
      )}
      <div className="grid">
        <EventFeed />
        <UsageToday />
      </div>
      {sandboxes.isSuccess && all.length === 0 && (
        <Card>
          <Empty title="Nothing here yet">
            <span>
              Create your first sandbox, or run <code>pandastack run -- uname -a</code>.
            </span>
          </Empty>
        </Card>
      )}
    </>
  );
}

function Tile({ to, label, value }: { to: string; label: string; value: number }) {
  return (
    <Link to={to} className="card tile">
      <b className="num">{value}</b>
      <span>{label}</span>
    </Link>
  );
}

export function EventFeed({ sandbox }: { sandbox?: string }) {
  const { events } = useLive();
  const shown = events
    .filter(({ sandbox_id }) => !sandbox || sandbox_id === sandbox)
    .slice(-80)
    .reverse();
  return (
    <Card title="Events" flush>
      {shown.length === 0 ? (
        <Empty title="No events yet" />
      ) : (
        <div className="feed" tabIndex={0} role="log" aria-label="Events">
          {shown.map((event) => (
            <Link key={event.id} to={`/sandboxes/${event.sandbox_id}`}>
              <span className="faint num">{clock(event.at)}</span>
              <span className="cut">{words(event.kind ?? "")}</span>
              <span className="muted cut">
                <span className="mono">{short(event.sandbox_id)}</span> {event.detail}
              </span>
            </Link>
          ))}
        </div>
      )}
    </Card>
  );
}

function UsageToday() {
  const since = new Date(new Date().setHours(0, 0, 0, 0)).toISOString();
  const usage = useQuery({
    queryKey: ["usage", since],
    queryFn: () => api.usage({ since }),
    refetchInterval: 60_000,
  });
  const total = usage.data?.total ?? {};
  const rows: [string, string][] = [
    ["Sandboxes created", String(total.creates ?? 0)],
    ["CPU time", span((total.cpu_ms ?? 0) / 1000)],
    ["Memory", `${((total.memory_mb_seconds ?? 0) / 1024 / 3600).toFixed(2)} GB h`],
    ["Asleep", span(total.asleep_seconds ?? 0)],
    ["Function calls", String(total.calls ?? 0)],
    ["Network sent", bytes(total.sent_bytes)],
    ["Network received", bytes(total.received_bytes)],
  ];
  return (
    <Card
      title="Usage today"
      actions={
        <Link className="link" to="/usage">
          Details
        </Link>
      }
    >
      <Problem error={usage.error} />
      <dl className="kv">
        {rows.map(([name, value]) => [
          <dt key={`${name}t`}>{name}</dt>,
          <dd key={name} className="num">
            {value}
          </dd>,
        ])}
      </dl>
    </Card>
  );
}
