/** Snapshots of a sandbox, on a line and in a list. */

import { useQuery } from "@tanstack/react-query";
import { Camera, Play, RotateCcw, Trash2 } from "lucide-react";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api, queries, useCan } from "../api";
import { ago, bytes, when } from "../format";
import { Button, Card, Empty, Problem, Table, useAct } from "../ui/basics";
import { ConfirmByName } from "../ui/dialogs";
import { Timeline } from "../ui/timeline";

export default function Snapshots({ id }: { id: string }) {
  const list = useQuery({
    queryKey: ["snapshots", id],
    queryFn: () => api.snapshots.list({ sandboxId: id }),
  });
  const [asking, setAsking] = useState<{ kind: "rollback" | "delete"; snapshot: string; name: string }>();
  const [busy, setBusy] = useState(false);
  const navigate = useNavigate();
  const act = useAct();
  const can = useCan();
  const run = async (work: () => Promise<unknown>, done?: string): Promise<void> => {
    setBusy(true);
    await act(work, done);
    setBusy(false);
    void list.refetch();
  };
  const start = (snapshot: string): Promise<void> =>
    run(async () => {
      const sandbox = await api.sandboxes.create({ fromSnapshot: snapshot });
      void queries.invalidateQueries({ queryKey: ["sandboxes"] });
      void navigate(`/sandboxes/${sandbox.id}`);
    });
  const items = list.data ?? [];
  return (
    <>
      <Problem error={list.error} />
      {items.length > 0 && (
        <Card title="Timeline">
          <Timeline
            points={items.map(({ id: key, name, created_at }) => ({
              key,
              at: created_at ?? "",
              label: name ?? key,
            }))}
            onPick={(key) =>
              setAsking({
                kind: "rollback",
                snapshot: key,
                name: items.find((item) => item.id === key)?.name ?? key,
              })
            }
          />
        </Card>
      )}
      <Card
        title="Snapshots"
        flush
        actions={
          can("sandboxes") && (
            <Button
              kind="s"
              disabled={busy}
              onClick={() => void run(async () => (await api.sandboxes.get(id)).snapshot(), "Snapshot taken")}
            >
              <Camera />
              Take a snapshot
            </Button>
          )
        }
      >
        <Table
          head={["Name", "Kind", "Size", "Taken", ""]}
          empty={
            <Empty title="No snapshots yet">
              A snapshot saves memory and disk. Roll back to it, or start sandboxes from it.
            </Empty>
          }
          rows={items.map((item) => ({
            key: item.id,
            cells: [
              <span>
                {item.name ? <b>{item.name} </b> : null}
                <span className="mono faint">{item.id}</span>
              </span>,
              item.kind ?? "–",
              bytes(item.size_bytes),
              <span title={when(item.created_at)}>{ago(item.created_at)}</span>,
              can("sandboxes") && (
                <span className="row" style={{ justifyContent: "flex-end" }}>
                  <Button kind="s ghost" disabled={busy} onClick={() => void start(item.id)}>
                    <Play />
                    New sandbox
                  </Button>
                  <Button
                    kind="s ghost"
                    disabled={busy}
                    onClick={() =>
                      setAsking({ kind: "rollback", snapshot: item.id, name: item.name ?? item.id })
                    }
                  >
                    <RotateCcw />
                    Roll back
                  </Button>
                  <Button
                    kind="s ghost danger icon"
                    aria-label={`Delete ${item.name ?? item.id}`}
                    onClick={() =>
                      setAsking({ kind: "delete", snapshot: item.id, name: item.name ?? item.id })
                    }
                  >
                    <Trash2 />
                  </Button>
                </span>
              ),
            ],
          }))}
        />
      </Card>
      <ConfirmByName
        title="Roll back this sandbox?"
        hint="All changes since the snapshot are lost. The ID and URLs stay the same."
        name={asking?.name ?? ""}
        action="Roll back"
        open={asking?.kind === "rollback"}
        onClose={() => setAsking(undefined)}
        onConfirm={async () => {
          await (await api.sandboxes.get(id)).rollback(asking?.snapshot);
          void queries.invalidateQueries({ queryKey: ["sandbox", id] });
        }}
      />
      <ConfirmByName
        title="Delete this snapshot?"
        hint="Sandboxes created from it are kept."
        name={asking?.name ?? ""}
        open={asking?.kind === "delete"}
        onClose={() => setAsking(undefined)}
        onConfirm={async () => {
          await api.snapshots.delete(asking?.snapshot ?? "");
          await list.refetch();
        }}
      />
    </>
  );
}
