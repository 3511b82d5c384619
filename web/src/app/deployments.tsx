/** Versions of an app, and the log of the selected one. */

import type { AppInfo, DeploymentInfo } from "@pandastack/sdk";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, queries, useCan } from "../api";
import { ago, short } from "../format";
import { Button, Card, Empty, Loaded, Status, Table, useAct } from "../ui/basics";
import { ConfirmByName } from "../ui/dialogs";
import { LogView } from "../ui/log";

const GOING_ON = new Set(["queued", "building", "deploying"]);
/**
 * Deployments have no events. A deployment's log shows its end; otherwise this polling interval is
 * enough.
 */
const LOOK_MS = 20_000;

export function Deployments({ app }: { app: AppInfo }) {
  const query = useQuery({
    queryKey: ["apps", app.name, "deployments"],
    refetchInterval: LOOK_MS,
    queryFn: () => api.apps.deployments(app.name),
  });
  const [chosen, setChosen] = useState<string>();
  const [target, setTarget] = useState<string>();
  const act = useAct();
  const can = useCan();
  const reload = (): Promise<void> => queries.invalidateQueries({ queryKey: ["apps"] });
  return (
    <Loaded query={query}>
      {(all) => {
        const shown = chosen ?? (all[0] ? String(all[0].id) : undefined);
        return (
          <div className="stack">
            <Card title="Deployments" flush>
              <Table
                head={["Version", "State", "Source", "Started", ""]}
                empty={
                  <Empty title="No deployments yet">
                    <code>pandastack app deploy {app.name}</code>
                  </Empty>
                }
                rows={all.map((deployment) => ({
                  key: String(deployment.id),
                  cells: [
                    <button
                      type="button"
                      className="btn ghost s mono"
                      aria-pressed={shown === deployment.id}
                      onClick={() => setChosen(String(deployment.id))}
                    >
                      {short(String(deployment.id))}
                    </button>,
                    <Status value={String(deployment.status)} />,
                    <span className="mono muted">{sourceOf(deployment)}</span>,
                    ago(String(deployment.created_at)),
                    can("sandboxes") && (
                      <span className="row" style={{ justifyContent: "flex-end" }}>
                        {GOING_ON.has(String(deployment.status)) && (
                          <Button
                            kind="s ghost danger"
                            onClick={() =>
                              void act(
                                () => api.apps.cancel(app.name, String(deployment.id)).then(reload),
                                "Cancelled",
                              )
                            }
                          >
                            Cancel
                          </Button>
                        )}
                        {deployment.id !== app.active_deployment_id && deployment.kept === true && (
                          <Button kind="s ghost" onClick={() => setTarget(String(deployment.id))}>
                            Roll back to it
                          </Button>
                        )}
                      </span>
                    ),
                  ],
                }))}
              />
            </Card>
            {shown && (
              <Card title={`Build log of ${short(shown)}`} flush>
                <LogView
                  id={shown}
                  source={(signal) => api.apps.deployLogs(app.name, shown, { signal })}
                  onEnd={() => void reload()}
                />
              </Card>
            )}
            <ConfirmByName
              title="Roll back?"
              hint="The chosen version goes live."
              name={app.name}
              action="Roll back"
              open={target !== undefined}
              onClose={() => setTarget(undefined)}
              onConfirm={async () => {
                await api.apps.rollback(app.name, target);
                await reload();
              }}
            />
          </div>
        );
      }}
    </Loaded>
  );
}

function sourceOf(deployment: DeploymentInfo): string {
  return [
    deployment.git_ref,
    String(deployment.git_commit ?? "").slice(0, 8),
    deployment.git_commit ? "" : deployment.trigger,
  ]
    .filter(Boolean)
    .join(" · ");
}
