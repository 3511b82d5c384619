/** Volumes: disks that outlive sandboxes. */

import { useQuery } from "@tanstack/react-query";
import { Copy, Trash2 } from "lucide-react";
import { useState } from "react";
import { Link } from "react-router";
import { api, useCan } from "../api";
import { ago, bytes, memory } from "../format";
import { Button, Card, Empty, Loaded, PageHead, Table, useAct } from "../ui/basics";
import { Ask, ConfirmByName } from "../ui/dialogs";

export default function Volumes() {
  const query = useQuery({ queryKey: ["volumes"], queryFn: () => api.volumes.list() });
  const [asking, setAsking] = useState<{ kind: "delete" | "clone"; name: string }>();
  const [size, setSize] = useState("1024");
  const [name, setName] = useState("");
  const can = useCan();
  const act = useAct();
  return (
    <>
      <PageHead title="Volumes" />
      {can("sandboxes") && (
        <form
          className="row wrap"
          onSubmit={(event) => {
            event.preventDefault();
            void act(async () => {
              await api.volumes.create(name, Number(size));
              setName("");
              await query.refetch();
            }, "Created");
          }}
        >
          <input
            className="input"
            style={{ maxWidth: 240 }}
            aria-label="Name"
            placeholder="Name"
            required
            value={name}
            onChange={(event) => setName(event.target.value)}
          />
          <input
            className="input"
            style={{ maxWidth: 140 }}
            aria-label="Size in MB"
            inputMode="numeric"
            pattern="[0-9]+"
            value={size}
            onChange={(event) => setSize(event.target.value)}
          />
          <span className="muted">MB</span>
          <Button type="submit">Create volume</Button>
        </form>
      )}
      <Loaded query={query}>
        {(all) => (
          <Card flush>
            <Table
              head={["Volume", "Size", "Used", "Attached to", "Created", ""]}
              empty={
                <Empty title="No volumes yet">
                  A volume is a disk that outlives the sandboxes that mount it.
                </Empty>
              }
              rows={all.map((volume) => ({
                key: volume.name,
                cells: [
                  <b>{volume.name}</b>,
                  memory(volume.size_mb),
                  bytes(volume.used_bytes),
                  <span className="row wrap">
                    {(volume.attached_to ?? []).map(({ sandbox_id }) => (
                      <Link key={sandbox_id} className="link mono" to={`/sandboxes/${sandbox_id}`}>
                        {sandbox_id}
                      </Link>
                    ))}
                  </span>,
                  ago(volume.created_at),
                  can("sandboxes") && (
                    <span className="row" style={{ justifyContent: "flex-end" }}>
                      <Button kind="s ghost" onClick={() => setAsking({ kind: "clone", name: volume.name })}>
                        <Copy />
                        Clone
                      </Button>
                      <Button
                        kind="s ghost danger icon"
                        aria-label={`Delete ${volume.name}`}
                        onClick={() => setAsking({ kind: "delete", name: volume.name })}
                      >
                        <Trash2 />
                      </Button>
                    </span>
                  ),
                ],
              }))}
            />
          </Card>
        )}
      </Loaded>
      {asking?.kind === "clone" && (
        <Ask
          title={`Clone ${asking.name}`}
          label="Name of the copy"
          action="Clone"
          open
          onClose={() => setAsking(undefined)}
          onAnswer={async (copy) => {
            await api.volumes.clone(asking.name, copy);
            await query.refetch();
          }}
        />
      )}
      <ConfirmByName
        title="Delete this volume?"
        hint="All data on it is deleted."
        name={asking?.name ?? ""}
        open={asking?.kind === "delete"}
        onClose={() => setAsking(undefined)}
        onConfirm={async () => {
          await api.volumes.delete(asking?.name ?? "");
          await query.refetch();
        }}
      />
    </>
  );
}
