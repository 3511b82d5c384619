/** Summary of a sandbox, its ports and its log. */

import type { SandboxInfo } from "@pandastack/sdk";
import { useQuery } from "@tanstack/react-query";
import { ExternalLink, RefreshCw } from "lucide-react";
import { Link } from "react-router";
import { api } from "../api";
import { ago, memory, millis, when } from "../format";
import { EventFeed } from "../pages/overview";
import { Button, Card, CopyButton, Empty, Fields, Problem, Table } from "../ui/basics";
import { LogView } from "../ui/log";

export function Summary({ info }: { info: SandboxInfo }) {
  const metadata = Object.entries(info.metadata);
  return (
    <>
      <div className="grid">
        <Card title="Details">
          <Fields
            of={[
              [
                "Id",
                <span className="row">
                  <span className="mono">{info.id}</span>
                  <CopyButton text={info.id} label="Copy id" />
                </span>,
              ],
              ["Template", info.template],
              ["Size", `${info.cpu} CPU · ${memory(info.memory_mb)}`],
              ["Created", <span title={when(info.created_at)}>{ago(info.created_at)}</span>],
              ["Started in", millis(info.boot_ms)],
              [
                "Lifetime",
                info.persistent
                  ? "Persistent; sleeps when idle"
                  : info.expires_at
                    ? `Ends ${ago(info.expires_at)}`
                    : "–",
              ],
              [
                "Forked from",
                info.parent_id ? (
                  <Link className="link mono" to={`/sandboxes/${info.parent_id}`}>
                    {info.parent_id}
                  </Link>
                ) : (
                  "–"
                ),
              ],
              ["Isolation", [info.isolation, info.engine].filter(Boolean).join(" · ") || "–"],
              ["Host", info.host ?? "–"],
              ...metadata.map(([key, value]): [string, string] => [key, value]),
            ]}
          />
        </Card>
        <EventFeed sandbox={info.id} />
      </div>
      {info.status === "running" && <Ports id={info.id} />}
      <Card title="Output" flush>
        <LogView id={info.id} source={(signal) => follow(info.id, signal)} />
      </Card>
    </>
  );
}

async function* follow(id: string, signal: AbortSignal): AsyncGenerator<string> {
  yield* (await api.sandboxes.get(id)).logs({ follow: true, signal });
}

function Ports({ id }: { id: string }) {
  const ports = useQuery({
    queryKey: ["sandbox", id, "ports"],
    queryFn: async () => {
      const sandbox = await api.sandboxes.get(id);
      return (await sandbox.ports()).map((port) => ({ ...port, url: sandbox.previewUrl(port.port) }));
    },
  });
  return (
    <Card
      title="Ports"
      flush
      actions={
        <Button kind="ghost icon s" aria-label="Refresh ports" onClick={() => void ports.refetch()}>
          <RefreshCw />
        </Button>
      }
    >
      <Problem error={ports.error} />
      <Table
        head={["Port", "Address", "Preview"]}
        empty={<Empty title="No process listens on a port" />}
        rows={(ports.data ?? []).map(({ port, address, url }) => ({
          key: String(port),
          cells: [
            <b className="num">{port}</b>,
            <span className="mono muted">{address ?? ""}</span>,
            <a className="link row" href={url} target="_blank" rel="noreferrer">
              {url}
              <ExternalLink size={13} />
            </a>,
          ],
        }))}
      />
    </Card>
  );
}
