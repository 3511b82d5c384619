/** Files of a sandbox: browse, edit, upload, download. */

import type { FileInfo } from "@pandastack/sdk";
import { useQuery } from "@tanstack/react-query";
import {
  ArrowUp,
  Download,
  File as FileIcon,
  FilePlus,
  Folder,
  FolderPlus,
  Save,
  Trash2,
  Upload,
} from "lucide-react";
import { lazy, Suspense, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import { api, queries, useCan } from "../api";
import { bytes } from "../format";
import { Button, Card, Empty, Loaded, Problem, useAct } from "../ui/basics";
import { Ask, ConfirmByName } from "../ui/dialogs";

const Editor = lazy(() => import("../ui/editor"));

/** Larger files are downloaded instead of edited. */
const EDIT_BYTES_MAX = 1024 * 1024;

const join = (dir: string, name: string): string => `${dir === "/" ? "" : dir}/${name}`;
const parentOf = (path: string): string => path.slice(0, path.lastIndexOf("/")) || "/";

export default function Files({ id }: { id: string }) {
  const [params, setParams] = useSearchParams();
  const [dir, open] = [params.get("dir") ?? "/root", params.get("file") ?? undefined];
  const go = (next: { dir?: string; file?: string }): void =>
    setParams({ dir: next.dir ?? dir, ...(next.file ? { file: next.file } : {}) });
  const listing = useQuery({
    queryKey: ["files", id, dir],
    queryFn: async () => {
      const entries = await (await api.sandboxes.get(id)).filesystem.list(dir);
      return entries.sort((a, b) => Number(b.is_dir) - Number(a.is_dir) || a.name.localeCompare(b.name));
    },
  });
  const reload = (): Promise<void> => queries.invalidateQueries({ queryKey: ["files", id, dir] });
  const file = listing.data?.find((entry) => entry.path === open || join(dir, entry.name) === open);
  return (
    <Card
      flush
      title={<span className="mono cut">{dir}</span>}
      actions={<Tools id={id} dir={dir} reload={reload} onOpen={(path) => go({ file: path })} />}
    >
      <div className="files">
        <aside aria-label="Entries">
          {dir !== "/" && (
            <button type="button" className="file" onClick={() => go({ dir: parentOf(dir) })}>
              <ArrowUp aria-hidden />
              Parent directory
            </button>
          )}
          <Loaded query={listing}>
            {(entries) =>
              entries.length === 0 ? (
                <p className="faint" style={{ padding: 8 }}>
                  Empty directory
                </p>
              ) : (
                entries.map((entry) => (
                  <button
                    key={entry.name}
                    type="button"
                    className={`file ${join(dir, entry.name) === open ? "active" : ""}`}
                    onClick={() =>
                      entry.is_dir ? go({ dir: join(dir, entry.name) }) : go({ file: join(dir, entry.name) })
                    }
                  >
                    {entry.is_dir ? <Folder aria-hidden /> : <FileIcon aria-hidden />}
                    <span className="grow cut">{entry.name}</span>
                    {!entry.is_dir && <small className="faint num">{bytes(entry.size)}</small>}
                  </button>
                ))
              )
            }
          </Loaded>
        </aside>
        {open ? (
          <OpenFile
            key={open}
            id={id}
            path={open}
            info={file}
            onGone={() => {
              void reload();
              go({});
            }}
          />
        ) : (
          <Empty title="Choose a file to view it" />
        )}
      </div>
    </Card>
  );
}

function Tools({
  id,
  dir,
  reload,
  onOpen,
}: {
  id: string;
  dir: string;
  reload: () => Promise<void>;
  onOpen: (path: string) => void;
}) {
  const chooser = useRef<HTMLInputElement>(null);
  const [asking, setAsking] = useState<"file" | "directory">();
  const act = useAct();
  const can = useCan();
  if (!can("sandboxes")) return null;
  const upload = async (files: FileList): Promise<void> => {
    const { filesystem } = await api.sandboxes.get(id);
    for (const file of files) await filesystem.write(join(dir, file.name), await file.arrayBuffer());
    await reload();
  };
  return (
    <div className="row">
      <input
        ref={chooser}
        type="file"
        multiple
        hidden
        onChange={(event) =>
          event.target.files && void act(() => upload(event.target.files as FileList), "Uploaded")
        }
      />
      <Button kind="s" onClick={() => chooser.current?.click()}>
        <Upload />
        Upload
      </Button>
      <Button kind="ghost icon s" aria-label="New file" title="New file" onClick={() => setAsking("file")}>
        <FilePlus />
      </Button>
      <Button
        kind="ghost icon s"
        aria-label="New directory"
        title="New directory"
        onClick={() => setAsking("directory")}
      >
        <FolderPlus />
      </Button>
      {asking && (
        <Ask
          title={asking === "file" ? "New file" : "New directory"}
          label="Name"
          action="Create"
          open
          onClose={() => setAsking(undefined)}
          onAnswer={async (name) => {
            const { filesystem } = await api.sandboxes.get(id);
            if (asking === "file") await filesystem.write(join(dir, name), "");
            else await filesystem.mkdir(join(dir, name));
            await reload();
            if (asking === "file") onOpen(join(dir, name));
          }}
        />
      )}
    </div>
  );
}

function OpenFile({
  id,
  path,
  info,
  onGone,
}: {
  id: string;
  path: string;
  info: FileInfo | undefined;
  onGone: () => void;
}) {
  const [text, setText] = useState<string>();
  const [deleting, setDeleting] = useState(false);
  const act = useAct();
  const can = useCan();
  const isLarge = (info?.size ?? 0) > EDIT_BYTES_MAX;
  const content = useQuery({
    queryKey: ["file", id, path],
    enabled: !isLarge,
    gcTime: 0,
    queryFn: async () => {
      const raw = await (await api.sandboxes.get(id)).filesystem.readBytes(path);
      return raw.includes(0) ? null : new TextDecoder().decode(raw);
    },
  });
  const save = async (): Promise<void> => {
    if (text === undefined) return;
    const saved = await act(async () => (await api.sandboxes.get(id)).filesystem.write(path, text), "Saved");
    if (saved) setText(undefined);
  };
  const download = async (): Promise<void> => {
    const url = await (await api.sandboxes.get(id)).filesystem.signedUrl(path);
    const link = Object.assign(document.createElement("a"), {
      href: new URL(url, location.origin).href,
      download: path.split("/").pop() ?? "file",
    });
    link.click();
  };
  const name = path.split("/").pop() ?? path;
  return (
    <div className="stack s" style={{ padding: 10 }}>
      <div className="row">
        <b className="grow cut mono">
          {name}
          {text !== undefined && <span className="faint"> · changed</span>}
        </b>
        <Button kind="ghost icon s" aria-label="Download" title="Download" onClick={() => void act(download)}>
          <Download />
        </Button>
        {can("sandboxes") && (
          <Button
            kind="ghost icon s"
            aria-label="Delete file"
            title="Delete file"
            onClick={() => setDeleting(true)}
          >
            <Trash2 />
          </Button>
        )}
        {can("sandboxes") && (
          <Button kind="s primary" disabled={text === undefined} onClick={() => void save()}>
            <Save />
            Save
          </Button>
        )}
      </div>
      <Problem error={content.error} />
      {isLarge && <Empty title="This file is too large to edit here">Download it instead.</Empty>}
      {content.data === null && <Empty title="This is not a text file">Download it instead.</Empty>}
      {typeof content.data === "string" && (
        <Suspense fallback={null}>
          <Editor
            path={path}
            text={content.data}
            label={`Content of ${name}`}
            readOnly={!can("sandboxes")}
            onChange={setText}
            onSubmit={() => void save()}
          />
        </Suspense>
      )}
      <ConfirmByName
        title="Delete this file?"
        hint={path}
        name={name}
        open={deleting}
        onClose={() => setDeleting(false)}
        onConfirm={async () => {
          await (await api.sandboxes.get(id)).filesystem.remove(path);
          onGone();
        }}
      />
    </div>
  );
}
