/** Hosts of the installation. */

import { useQuery } from "@tanstack/react-query";
import { api } from "../api";
import { ago, bytes, memory } from "../format";
import { Card, Empty, Loaded, PageHead, Status, Table } from "../ui/basics";

/** Hosts report every few seconds and have no events. */
const LOOK_MS = 15_000;

export default function Hosts() {
  const query = useQuery({ queryKey: ["hosts"], refetchInterval: LOOK_MS, queryFn: () => api.hosts() });
  return (
    <>
      <PageHead title="Hosts" />
      <Loaded query={query}>
        {(all) => (
          <Card flush>
            <Table
              head={[
                "Host",
                "State",
                "Sandboxes",
                "Memory free",
                "Disk free",
                "Isolation",
                "Version",
                "Seen",
              ]}
              empty={<Empty title="No hosts have reported yet" />}
              rows={all.map((host) => ({
                key: String(host.id),
                cells: [
                  <b>{String(host.id)}</b>,
                  <Status value={host.reachable ? "ready" : "unreachable"} />,
                  <span className="num">{String(host.sandboxes)}</span>,
                  memory(Number(host.memory_free_mb)),
                  bytes(Number(host.disk_free_bytes)),
                  `${String(host.isolation)} · ${String(host.engine)}`,
                  String(host.version),
                  ago(String(host.last_seen_at)),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
    </>
  );
}
