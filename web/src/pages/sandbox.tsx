/** One sandbox. Each part of it has an address of its own. */

import { EllipsisVertical, GitFork, Moon, Pause, Play, Trash2, Camera, Zap } from "lucide-react";
import { lazy, useState } from "react";
import { useNavigate, useParams } from "react-router";
import { api, queries, useCan, useSandbox } from "../api";
import { Button, Loaded, PageHead, Status, TabLinks, useAct } from "../ui/basics";
import { Ask, ConfirmByName, Menu } from "../ui/dialogs";
import { Summary } from "../sandbox/summary";
import { Forks } from "../sandbox/forks";

const TerminalTab = lazy(() => import("../sandbox/terminal"));
const Files = lazy(() => import("../sandbox/files"));
const Processes = lazy(() => import("../sandbox/processes"));
const Metrics = lazy(() => import("../sandbox/metrics"));
const Network = lazy(() => import("../sandbox/network"));
const Snapshots = lazy(() => import("../sandbox/snapshots"));

const TABS: [string, string][] = [
  ["", "Overview"],
  ["terminal", "Terminal"],
  ["files", "Files"],
  ["processes", "Processes"],
  ["metrics", "Metrics"],
  ["network", "Network"],
  ["forks", "Forks"],
  ["snapshots", "Snapshots"],
];

export default function SandboxPage() {
  const { id = "", tab = "" } = useParams();
  const query = useSandbox(id);
  return (
    <Loaded query={query}>
      {(info) => (
        <>
          <PageHead title={info.metadata.name ?? info.id}>
            <Status value={info.host_reachable === false ? "unreachable" : info.status} />
            <Actions id={id} status={info.status} />
          </PageHead>
          {info.failure && (
            <div className="notice" role="alert">
              {info.failure}
            </div>
          )}
          <TabLinks base={`/sandboxes/${id}`} tabs={TABS} current={tab} />
          {tab === "" && <Summary info={info} />}
          {tab === "terminal" && <TerminalTab key={id} id={id} />}
          {tab === "files" && <Files key={id} id={id} />}
          {tab === "processes" && <Processes key={id} id={id} />}
          {tab === "metrics" && <Metrics key={id} id={id} />}
          {tab === "network" && <Network key={id} id={id} />}
          {tab === "forks" && <Forks id={id} />}
          {tab === "snapshots" && <Snapshots key={id} id={id} />}
        </>
      )}
    </Loaded>
  );
}

function Actions({ id, status }: { id: string; status: string }) {
  const [asking, setAsking] = useState<"delete" | "snapshot">();
  const [busy, setBusy] = useState(false);
  const can = useCan();
  const act = useAct();
  const navigate = useNavigate();
  if (!can("sandboxes")) return null;
  const run = async (work: () => Promise<unknown>, done: string): Promise<void> => {
    setBusy(true);
    await act(work, done);
    setBusy(false);
    void queries.invalidateQueries({ queryKey: ["sandbox", id] });
    void queries.invalidateQueries({ queryKey: ["sandboxes"] });
  };
  const handle = async () => await api.sandboxes.get(id);
  const fork = (): Promise<void> =>
    run(async () => {
      await api.sandboxes.fork(id);
      void navigate(`/sandboxes/${id}/forks`);
    }, "Forked");
  const sleeps = status === "hibernated";
  return (
    <div className="row">
      {sleeps ? (
        <Button disabled={busy} onClick={() => void run(async () => (await handle()).wake(), "Woken")}>
          <Zap />
          Wake
        </Button>
      ) : (
        <Button
          disabled={busy}
          onClick={() => void run(async () => (await handle()).hibernate(), "Put to sleep")}
        >
          <Moon />
          Sleep
        </Button>
      )}
      <Button disabled={busy} onClick={() => void fork()}>
        <GitFork />
        Fork
      </Button>
      <Menu
        trigger={
          <Button kind="icon" aria-label="More actions">
            <EllipsisVertical />
          </Button>
        }
        entries={[
          { label: "Take a snapshot", icon: <Camera />, onSelect: () => setAsking("snapshot") },
          status === "paused"
            ? {
                label: "Resume",
                icon: <Play />,
                onSelect: () => void run(async () => (await handle()).resume(), "Resumed"),
              }
            : {
                label: "Pause",
                icon: <Pause />,
                onSelect: () => void run(async () => (await handle()).pause(), "Paused"),
              },
          { label: "Delete", icon: <Trash2 />, danger: true, onSelect: () => setAsking("delete") },
        ]}
      />
      <ConfirmByName
        title="Delete this sandbox?"
        hint="Its memory and disk are deleted. Snapshots and forks are kept."
        name={id}
        open={asking === "delete"}
        onClose={() => setAsking(undefined)}
        onConfirm={async () => {
          await api.sandboxes.delete(id);
          void queries.invalidateQueries({ queryKey: ["sandboxes"] });
          void navigate("/sandboxes");
        }}
      />
      {asking === "snapshot" && (
        <Ask
          title="Take a snapshot"
          hint="Saves memory and disk. The sandbox keeps running."
          label="Name"
          action="Take snapshot"
          optional
          open
          onClose={() => setAsking(undefined)}
          onAnswer={async (name) => {
            await (await handle()).snapshot(name ? { name } : {});
            void queries.invalidateQueries({ queryKey: ["snapshots"] });
            void navigate(`/sandboxes/${id}/snapshots`);
          }}
        />
      )}
    </div>
  );
}
