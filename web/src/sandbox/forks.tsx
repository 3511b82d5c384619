/** The tree that a sandbox belongs to. */

import { GitFork } from "lucide-react";
import { useState } from "react";
import { api, queries, useCan, useSandboxes } from "../api";
import { ago } from "../format";
import { Button, Card, Loaded, useAct } from "../ui/basics";
import { ConfirmByName } from "../ui/dialogs";
import { familyOf, Tree } from "../ui/tree";

export function Forks({ id }: { id: string }) {
  const query = useSandboxes();
  const can = useCan();
  const act = useAct();
  const [busy, setBusy] = useState(false);
  const [promoting, setPromoting] = useState(false);
  const fork = async (count: number): Promise<void> => {
    setBusy(true);
    await act(
      () => (count === 1 ? api.sandboxes.fork(id) : api.sandboxes.forkTree(id, { count })),
      count === 1 ? "Forked" : `Forked ${count} times`,
    );
    setBusy(false);
    void queries.invalidateQueries({ queryKey: ["sandboxes"] });
  };
  return (
    <Loaded query={query}>
      {(all) => {
        const items = familyOf(
          all.map((info) => ({
            id: info.id,
            parent: info.parent_id,
            label: info.metadata.name ?? info.id.slice(0, 18),
            note: `${info.metadata.name ? `${info.id.slice(0, 8)} · ` : ""}${info.status === "hibernated" ? "sleeping" : info.status} · ${ago(info.created_at)}`,
            href: `/sandboxes/${info.id}/forks`,
          })),
          id,
        );
        const isFork = all.find((info) => info.id === id)?.parent_id !== undefined;
        return (
          <Card
            title={`${items.length} ${items.length === 1 ? "sandbox" : "sandboxes"} in this tree`}
            flush
            actions={
              can("sandboxes") && (
                <>
                  <Button kind="s" disabled={busy} onClick={() => void fork(1)}>
                    <GitFork />
                    Fork
                  </Button>
                  <Button kind="s" disabled={busy} onClick={() => void fork(3)}>
                    Fork 3 times
                  </Button>
                  {isFork && (
                    <Button kind="s" disabled={busy} onClick={() => setPromoting(true)}>
                      Promote
                    </Button>
                  )}
                </>
              )
            }
          >
            <Tree items={items} current={id} />
            <ConfirmByName
              title="Promote this fork?"
              hint="Its siblings are deleted; this fork is kept."
              name={id}
              action="Promote"
              open={promoting}
              onClose={() => setPromoting(false)}
              onConfirm={async () => {
                await api.sandboxes.promote(id, { cleanupSiblings: true });
                await queries.invalidateQueries({ queryKey: ["sandboxes"] });
              }}
            />
          </Card>
        );
      }}
    </Loaded>
  );
}
