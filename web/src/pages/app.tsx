/** One app: its versions, its log, its variables and its names. */

import type { AppInfo } from "@pandastack/sdk";
import { useQuery } from "@tanstack/react-query";
import { EllipsisVertical, ExternalLink, RotateCcw, RotateCw, Rocket, Trash2 } from "lucide-react";
import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, queries, useCan } from "../api";
import { bytes } from "../format";
import { Deployments } from "../app/deployments";
import { Domains, Environment } from "../app/settings";
import { Button, Card, Fields, Loaded, PageHead, Status, TabLinks, Table, useAct } from "../ui/basics";
import { ConfirmByName, Menu } from "../ui/dialogs";
import { LogView } from "../ui/log";

const TABS: [string, string][] = [
  ["", "Deployments"],
  ["logs", "Logs"],
  ["env", "Environment"],
  ["domains", "Domains"],
  ["instances", "Instances"],
];

export default function AppPage() {
  const { name = "", tab = "" } = useParams();
  const query = useQuery({ queryKey: ["apps", name], queryFn: () => api.apps.get(name) });
  return (
    <Loaded query={query}>
      {(app) => (
        <>
          <PageHead title={app.name}>
            <Status value={app.status} />
            {app.url && (
              <a className="btn" href={app.url} target="_blank" rel="noreferrer">
                <ExternalLink />
                Open
              </a>
            )}
            <Actions app={app} />
          </PageHead>
          <TabLinks base={`/apps/${name}`} tabs={TABS} current={tab} />
          {tab === "" && <Deployments app={app} />}
          {tab === "logs" && (
            <Card title="Output of the live version" flush>
              <LogView
                id={`${name}-${app.active_deployment_id ?? ""}`}
                source={(signal) => api.apps.logs(name, { follow: true, signal })}
              />
            </Card>
          )}
          {tab === "env" && <Environment name={name} />}
          {tab === "domains" && <Domains name={name} />}
          {tab === "instances" && <Instances app={app} />}
        </>
      )}
    </Loaded>
  );
}

function Actions({ app }: { app: AppInfo }) {
  const [deleting, setDeleting] = useState(false);
  const can = useCan();
  const act = useAct();
  const navigate = useNavigate();
  if (!can("sandboxes")) return null;
  const reload = (): Promise<void> => queries.invalidateQueries({ queryKey: ["apps"] });
  return (
    <div className="row">
      {app.git_url && (
        <Button
          kind="primary"
          onClick={() => void act(() => api.apps.deploy(app.name).then(reload), "Deployment started")}
        >
          <Rocket />
          Deploy
        </Button>
      )}
      <Menu
        trigger={
          <Button kind="icon" aria-label="More actions">
            <EllipsisVertical />
          </Button>
        }
        entries={[
          {
            label: "Restart",
            icon: <RotateCw />,
            onSelect: () => void act(() => api.apps.restart(app.name).then(reload), "Restarting"),
          },
          {
            label: "Roll back",
            icon: <RotateCcw />,
            onSelect: () => void act(() => api.apps.rollback(app.name).then(reload), "Rolling back"),
          },
          { label: "Delete", icon: <Trash2 />, danger: true, onSelect: () => setDeleting(true) },
        ]}
      />
      <ConfirmByName
        title="Delete this app?"
        hint="All its versions are deleted. Attached databases are kept."
        name={app.name}
        open={deleting}
        onClose={() => setDeleting(false)}
        onConfirm={async () => {
          await api.apps.delete(app.name);
          await reload();
          void navigate("/apps");
        }}
      />
    </div>
  );
}

function Instances({ app }: { app: AppInfo }) {
  const metrics = useQuery({
    queryKey: ["apps", app.name, "metrics"],
    queryFn: () => api.apps.metrics(app.name),
  });
  const total = metrics.data?.total ?? {};
  return (
    <div className="stack">
      <Card title="Together">
        <Fields
          of={[
            ["CPU", `${(total.cpu_used_percent ?? 0).toFixed(0)} %`],
            ["Memory", bytes(total.memory_bytes)],
            ["Instances", `${app.min_instances} to ${app.max_instances}`],
          ]}
        />
      </Card>
      <Card title="Instances" flush>
        <Table
          head={["Machine", "State", "CPU", "Memory"]}
          rows={(metrics.data?.instances ?? []).map((instance) => ({
            key: instance.sandbox_id,
            cells: [
              <Link className="link mono" to={`/sandboxes/${instance.sandbox_id}`}>
                {instance.sandbox_id}
              </Link>,
              <Status value={instance.status} />,
              `${(instance.host?.cpu_used_percent ?? 0).toFixed(0)} %`,
              bytes(instance.host?.memory_bytes),
            ],
          }))}
        />
      </Card>
    </div>
  );
}
