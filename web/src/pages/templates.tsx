/** Templates, and the builds that make them. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../api";
import { ago, bytes, memory } from "../format";
import { Button, Card, Empty, Loaded, PageHead, Status, Table } from "../ui/basics";
import { LogView } from "../ui/log";

export default function Templates() {
  const query = useQuery({ queryKey: ["templates"], queryFn: () => api.templates.list() });
  const builds = useQuery({ queryKey: ["builds"], queryFn: () => api.templates.builds() });
  const [shown, setShown] = useState<string>();
  return (
    <>
      <PageHead title="Templates" />
      <Loaded query={query}>
        {(all) => (
          <Card flush>
            <Table
              head={["Template", "State", "Size", "Disk"]}
              empty={<Empty title="No templates" />}
              rows={all.map((template) => ({
                key: template.name,
                cells: [
                  <span>
                    <b>{template.name}</b> <span className="muted">{template.description}</span>
                  </span>,
                  <Status value={template.status} />,
                  `${template.cpu ?? "–"} CPU · ${memory(template.memory_mb)}`,
                  bytes(template.size_bytes),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
      <Card title="Builds" flush>
        <Table
          head={["Build", "State", "Phase", "Started", ""]}
          empty={<Empty title="No builds" />}
          rows={(builds.data ?? []).map((build) => ({
            key: build.id,
            cells: [
              <b>{build.name}</b>,
              <Status value={build.status === "done" ? "succeeded" : build.status} />,
              build.phase,
              ago(build.started_at),
              <Button kind="s ghost" onClick={() => setShown(build.id)}>
                Log
              </Button>,
            ],
          }))}
        />
      </Card>
      {shown && (
        <Card title="Build log" flush>
          <LogView
            id={shown}
            source={(signal) => api.templates.buildLogs(shown, { signal })}
            onEnd={() => void builds.refetch()}
          />
        </Card>
      )}
    </>
  );
}
