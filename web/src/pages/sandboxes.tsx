/** The list of sandboxes: filtered, selected, acted on. Only the rows on the screen are in the page. */

import type { SandboxInfo } from "@pandastack/sdk";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Moon, Plus, Search, Trash2, Zap } from "lucide-react";
import { lazy, Suspense, useMemo, useRef, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { api, queries, useCan, useSandboxes } from "../api";
import { ago, memory } from "../format";
import { Button, Card, Empty, PageHead, Problem, Status, useAct } from "../ui/basics";
import { ConfirmByName } from "../ui/dialogs";

const CreateSandbox = lazy(() => import("../sandbox/create"));
const ROW_PX = 46;
/** Calls of a bulk action that are in flight at once. */
const AT_ONCE = 4;

const STATES: [string, string][] = [
  ["", "All"],
  ["running", "Running"],
  ["hibernated", "Sleeping"],
  ["failed", "Failed"],
];

function matches(info: SandboxInfo, words: string[], state: string): boolean {
  if (state && info.status !== state && !(state === "hibernated" && info.status === "paused")) return false;
  const text = [
    info.id,
    info.template,
    info.status,
    info.host,
    ...Object.entries(info.metadata).map(([key, value]) => `${key}=${value}`),
  ]
    .join(" ")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

export function Sandboxes() {
  const [params, setParams] = useSearchParams();
  const query = useSandboxes();
  const can = useCan();
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [text, state] = [params.get("q") ?? "", params.get("state") ?? ""];
  const set = (name: string, value: string | undefined): void => {
    setParams(
      (old) => {
        const next = new URLSearchParams(old);
        if (value === undefined || (value === "" && name !== "create")) next.delete(name);
        else next.set(name, value);
        return next;
      },
      { replace: true },
    );
  };
  const shown = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const all = (query.data ?? []).filter((info) => matches(info, words, state));
    return all.sort((a, b) => (b.created_at ?? "").localeCompare(a.created_at ?? ""));
  }, [query.data, text, state]);
  const chosen = shown.filter(({ id }) => selected.has(id));
  return (
    <>
      <PageHead title="Sandboxes">
        {can("sandboxes") && (
          <Button kind="primary" onClick={() => set("create", "")}>
            <Plus />
            Create sandbox
          </Button>
        )}
      </PageHead>
      <Problem error={query.error} />
      <div className="row wrap">
        <div className="search">
          <Search aria-hidden />
          <input
            className="input"
            type="search"
            aria-label="Filter"
            placeholder="Filter by name, template, host or metadata"
            value={text}
            onChange={(event) => set("q", event.target.value)}
          />
        </div>
        <div className="row" role="group" aria-label="State">
          {STATES.map(([value, label]) => (
            <Button
              key={value}
              kind={`s ${state === value ? "" : "ghost"}`}
              aria-pressed={state === value}
              onClick={() => set("state", value)}
            >
              {label}
            </Button>
          ))}
        </div>
        <span className="grow" />
        {chosen.length > 0 && can("sandboxes") && (
          <Bulk chosen={chosen} onDone={() => setSelected(new Set())} />
        )}
      </div>
      <Card flush>
        {query.isSuccess && shown.length === 0 ? (
          <Empty title={query.data.length ? "No sandbox matches the filter" : "No sandboxes yet"}>
            {!query.data.length && (
              <span>A sandbox is an isolated virtual machine that starts in a fraction of a second.</span>
            )}
          </Empty>
        ) : (
          <Rows shown={shown} selected={selected} onSelect={setSelected} />
        )}
      </Card>
      {params.has("create") && (
        <Suspense fallback={null}>
          <CreateSandbox onClose={() => set("create", undefined)} />
        </Suspense>
      )}
    </>
  );
}

function Rows({
  shown,
  selected,
  onSelect,
}: {
  shown: SandboxInfo[];
  selected: ReadonlySet<string>;
  onSelect: (ids: ReadonlySet<string>) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_PX,
    overscan: 8,
  });
  const all = shown.length > 0 && shown.every(({ id }) => selected.has(id));
  const toggle = (id: string): void => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    onSelect(next);
  };
  return (
    <>
      <div className="vrow top-row">
        <input
          className="check"
          type="checkbox"
          aria-label="Select all"
          checked={all}
          onChange={() => onSelect(all ? new Set() : new Set(shown.map(({ id }) => id)))}
        />
        <span>Sandbox</span>
        <span>State</span>
        <span className="wide-only">Template</span>
        <span className="wide-only">Size</span>
        <span className="wide-only">Created</span>
      </div>
      <div
        ref={box}
        style={{ maxHeight: "calc(100vh - 270px)", minHeight: 200, overflow: "auto" }}
        tabIndex={0}
        role="group"
        aria-label="Sandboxes"
      >
        <div className="vlist" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map(({ index, start }) => {
            const info = shown[index];
            return (
              info && (
                <Row
                  key={info.id}
                  info={info}
                  top={start}
                  selected={selected.has(info.id)}
                  onToggle={() => toggle(info.id)}
                />
              )
            );
          })}
        </div>
      </div>
    </>
  );
}

function Row({
  info,
  top,
  selected,
  onToggle,
}: {
  info: SandboxInfo;
  top: number;
  selected: boolean;
  onToggle: () => void;
}) {
  return (
    <div className="vrow" style={{ transform: `translateY(${top}px)` }}>
      <input
        className="check"
        type="checkbox"
        aria-label={`Select ${info.id}`}
        checked={selected}
        onChange={onToggle}
      />
      <Link to={`/sandboxes/${info.id}`} className="cut">
        {info.metadata.name && <b>{info.metadata.name} </b>}
        <span className={`mono ${info.metadata.name ? "faint" : ""}`}>{info.id}</span>
      </Link>
      <span>
        <Status value={info.host_reachable === false ? "unreachable" : info.status} />
      </span>
      <span className="cut muted wide-only">
        {info.template}
        {info.parent_id ? " · fork" : ""}
      </span>
      <span className="muted num wide-only">
        {info.cpu} CPU · {memory(info.memory_mb)}
      </span>
      <span className="muted wide-only">{ago(info.created_at)}</span>
    </div>
  );
}

function Bulk({ chosen, onDone }: { chosen: SandboxInfo[]; onDone: () => void }) {
  const act = useAct();
  const [deleting, setDeleting] = useState(false);
  const each = async (work: (info: SandboxInfo) => Promise<unknown>): Promise<void> => {
    const waiting = [...chosen];
    const failed: unknown[] = [];
    const worker = async (): Promise<void> => {
      for (let info = waiting.shift(); info; info = waiting.shift())
        await work(info).catch((error: unknown) => failed.push(error));
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    await queries.invalidateQueries({ queryKey: ["sandboxes"] });
    onDone();
    if (failed.length) throw failed[0];
  };
  const handle = (work: (id: string) => Promise<unknown>, done: string) => () =>
    void act(() => each(({ id }) => work(id)), done);
  const phrase = chosen.length === 1 ? (chosen[0]?.id ?? "") : `delete ${chosen.length} sandboxes`;
  return (
    <div className="row">
      <span className="muted num">{chosen.length} selected</span>
      <Button kind="s" onClick={handle(async (id) => (await api.sandboxes.get(id)).wake(), "Woken")}>
        <Zap />
        Wake
      </Button>
      <Button
        kind="s"
        onClick={handle(async (id) => (await api.sandboxes.get(id)).hibernate(), "Put to sleep")}
      >
        <Moon />
        Sleep
      </Button>
      <Button kind="s danger" onClick={() => setDeleting(true)}>
        <Trash2 />
        Delete
      </Button>
      <ConfirmByName
        title={`Delete ${chosen.length === 1 ? "this sandbox" : `${chosen.length} sandboxes`}?`}
        hint="Their memory and disks are deleted. Snapshots and forks are kept."
        name={phrase}
        open={deleting}
        onClose={() => setDeleting(false)}
        onConfirm={() => each(({ id }) => api.sandboxes.delete(id))}
      />
    </div>
  );
}
