/** One database: how to connect, SQL, branches, and its past. */

import type { Database } from "@pandastack/sdk";
import { useQuery } from "@tanstack/react-query";
import { EllipsisVertical, GitBranch, KeyRound, Moon, Trash2, Zap } from "lucide-react";
import { lazy, useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, queries, useCan, useDatabases } from "../api";
import { ago, bytes, when } from "../format";
import {
  Button,
  Card,
  Code,
  Fields,
  Loaded,
  PageHead,
  Problem,
  Status,
  TabLinks,
  useAct,
} from "../ui/basics";
import { Ask, ConfirmByName, Menu } from "../ui/dialogs";
import { familyOf, Tree } from "../ui/tree";
import { History } from "../database/history";

const Sql = lazy(() => import("../database/sql"));
const TABS: [string, string][] = [
  ["", "Connect"],
  ["sql", "SQL"],
  ["branches", "Branches"],
  ["history", "History"],
  ["logs", "Log"],
];

export default function DatabasePage() {
  const { id = "", tab = "" } = useParams();
  const query = useQuery({ queryKey: ["databases", id], queryFn: () => api.databases.get(id) });
  return (
    <Loaded query={query}>
      {(database) => (
        <>
          <PageHead title={database.label ?? database.id}>
            <Status value={database.status} />
            <Actions database={database} />
          </PageHead>
          {database.error && (
            <div className="notice" role="alert">
              {database.error}
            </div>
          )}
          <TabLinks base={`/databases/${id}`} tabs={TABS} current={tab} />
          {tab === "" && <Connect database={database} />}
          {tab === "sql" && <Sql key={id} id={id} />}
          {tab === "branches" && <Branches id={id} />}
          {tab === "history" && <History key={id} id={id} />}
          {tab === "logs" && <ServerLog id={id} />}
        </>
      )}
    </Loaded>
  );
}

function Actions({ database }: { database: Database }) {
  const { id, status } = database;
  const [asking, setAsking] = useState<"delete" | "reset" | "branch">();
  const can = useCan();
  const act = useAct();
  const navigate = useNavigate();
  const reload = (): Promise<void> => queries.invalidateQueries({ queryKey: ["databases"] });
  if (!can("sandboxes")) return null;
  const name = database.label ?? id;
  return (
    <div className="row">
      {status === "hibernated" ? (
        <Button onClick={() => void act(() => api.databases.wake(id).then(reload), "Woken")}>
          <Zap />
          Wake
        </Button>
      ) : (
        <Button onClick={() => void act(() => api.databases.pause(id).then(reload), "Put to sleep")}>
          <Moon />
          Sleep
        </Button>
      )}
      <Button onClick={() => setAsking("branch")}>
        <GitBranch />
        Branch
      </Button>
      <Menu
        trigger={
          <Button kind="icon" aria-label="More actions">
            <EllipsisVertical />
          </Button>
        }
        entries={[
          { label: "Reset the password", icon: <KeyRound />, onSelect: () => setAsking("reset") },
          { label: "Delete", icon: <Trash2 />, danger: true, onSelect: () => setAsking("delete") },
        ]}
      />
      {asking === "branch" && (
        <Ask
          title="Create a branch"
          hint="A copy of the database as it is now, with its own credentials."
          label="Name"
          action="Create branch"
          optional
          open
          onClose={() => setAsking(undefined)}
          onAnswer={async (label) => {
            const branch = await api.databases.branch(id, label ? { label } : {});
            await reload();
            void navigate(`/databases/${branch.id}/branches`);
          }}
        />
      )}
      <ConfirmByName
        title="Reset the password?"
        hint="The old password stops working immediately."
        name={name}
        action="Reset"
        open={asking === "reset"}
        onClose={() => setAsking(undefined)}
        onConfirm={async () => {
          await api.databases.resetCredentials(id);
          await reload();
        }}
      />
      <ConfirmByName
        title="Delete this database?"
        hint="All its data is deleted. Branches are kept."
        name={name}
        open={asking === "delete"}
        onClose={() => setAsking(undefined)}
        onConfirm={async () => {
          await api.databases.delete(id);
          await reload();
          void navigate("/databases");
        }}
      />
    </div>
  );
}

const EXAMPLES: [string, (url: string) => string][] = [
  ["URL", (url) => url],
  ["psql", (url) => `psql '${url}'`],
  [
    "Python",
    (url) =>
      `import psycopg\n\nwith psycopg.connect(${JSON.stringify(url)}) as connection:\n    print(connection.execute("SELECT version()").fetchone())`,
  ],
  [
    "Node",
    (url) =>
      `import pg from "pg";\n\nconst client = new pg.Client({ connectionString: ${JSON.stringify(url)} });\nawait client.connect();\nconsole.log((await client.query("SELECT version()")).rows);`,
  ],
  ["Go", (url) => `conn, err := pgx.Connect(ctx, ${JSON.stringify(url)})`],
  ["Environment", (url) => `DATABASE_URL=${url}`],
];

function Connect({ database }: { database: Database }) {
  const [shown, setShown] = useState(0);
  const [pooled, setPooled] = useState(false);
  const [visible, setVisible] = useState(false);
  const url = (pooled ? database.pooled_url : database.connection_url) ?? "";
  const masked = database.password && !visible ? url.replace(database.password, "••••••••") : url;
  return (
    <div className="stack">
      <Card
        title="Connection"
        actions={
          <>
            <label className="row">
              <input
                type="checkbox"
                className="check"
                checked={pooled}
                onChange={(event) => setPooled(event.target.checked)}
              />
              Pooled
            </label>
            <Button kind="s" onClick={() => setVisible(!visible)}>
              {visible ? "Hide password" : "Show password"}
            </Button>
          </>
        }
      >
        {url ? (
          <div className="stack s">
            <div className="row wrap" role="group" aria-label="Language">
              {EXAMPLES.map(([label], at) => (
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
            <Code text={EXAMPLES[shown]?.[1](masked) ?? ""} />
          </div>
        ) : (
          <p className="muted">The connection string is shown once the database is ready.</p>
        )}
      </Card>
      <Card title="Details">
        <Fields
          of={[
            ["Id", <span className="mono">{database.id}</span>],
            ["Size", database.size],
            ["Engine", database.template],
            ["Created", <span title={when(database.created_at)}>{ago(database.created_at)}</span>],
            ["Sleeps when idle", database.always_on ? "No" : "Yes"],
            ["Protected", database.protected ? "Yes" : "No"],
            [
              "Branch of",
              database.cloned_from ? (
                <Link className="link mono" to={`/databases/${database.cloned_from}`}>
                  {database.cloned_from}
                </Link>
              ) : (
                "–"
              ),
            ],
          ]}
        />
      </Card>
      {database.status === "running" && <Stats id={database.id} />}
    </div>
  );
}

function Stats({ id }: { id: string }) {
  const stats = useQuery({ queryKey: ["databases", id, "stats"], queryFn: () => api.databases.stats(id) });
  return (
    <Card title="Activity">
      <Loaded query={stats}>
        {(now) => (
          <Fields
            of={[
              ["Version", now.version],
              [
                "Data",
                `${bytes(now.size_bytes)} · disk ${bytes(now.storage_used_bytes)} of ${bytes(now.storage_bytes)}`,
              ],
              ["Connections", `${now.connections} of ${now.connections_max}, ${now.active} active`],
              ["Transactions", `${now.commits} committed, ${now.rollbacks} rolled back`],
              ["Cache hits", `${now.cache_hit_percent.toFixed(1)} %`],
            ]}
          />
        )}
      </Loaded>
    </Card>
  );
}

function Branches({ id }: { id: string }) {
  const query = useDatabases();
  return (
    <Loaded query={query}>
      {(all) => (
        <Card title="Branches" flush>
          <Tree
            current={id}
            items={familyOf(
              all.map((database) => ({
                id: database.id,
                parent: database.cloned_from,
                label: (database.label ?? database.id).slice(0, 20),
                note: `${database.status === "hibernated" ? "sleeping" : database.status} · ${ago(database.created_at)}`,
                href: `/databases/${database.id}/branches`,
              })),
              id,
            )}
          />
        </Card>
      )}
    </Loaded>
  );
}

function ServerLog({ id }: { id: string }) {
  const log = useQuery({ queryKey: ["databases", id, "log"], queryFn: () => api.databases.logs(id) });
  return (
    <Card
      title="Server log"
      flush
      actions={
        <Button kind="s" onClick={() => void log.refetch()}>
          Refresh
        </Button>
      }
    >
      <Problem error={log.error} />
      <div className="log" tabIndex={0} role="log" aria-label="Server log">
        {log.data ?? "Loading"}
      </div>
    </Card>
  );
}
