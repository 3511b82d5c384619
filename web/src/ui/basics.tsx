/** Small parts that every page uses. */

import { Check, Copy, Inbox, X } from "lucide-react";
import {
  type ButtonHTMLAttributes,
  createContext,
  type ReactNode,
  useCallback,
  useContext,
  useState,
} from "react";
import { Link } from "react-router";
import { reasonOf } from "../api";
import { words } from "../format";

const COLOURS: Record<string, string> = {
  running: "green",
  live: "green",
  ready: "green",
  active: "green",
  succeeded: "green",
  success: "green",
  ok: "green",
  verified: "green",
  hibernated: "blue",
  paused: "blue",
  stopped: "",
  superseded: "",
  rolled_back: "",
  canceled: "",
  created: "",
  creating: "amber",
  stopping: "amber",
  building: "amber",
  deploying: "amber",
  queued: "amber",
  provisioning: "amber",
  baking: "amber",
  recovering: "amber",
  read_only: "amber",
  pending: "amber",
  failing: "amber",
  deleting: "amber",
  failed: "red",
  error: "red",
  unreachable: "red",
  timeout: "red",
};

/** A state, by colour and by word. */
export function Status({ value }: { value: string | undefined }) {
  const state = value ?? "unknown";
  return (
    <span className={`badge ${COLOURS[state] ?? ""}`}>
      <i aria-hidden />
      {state === "hibernated" ? "sleeping" : words(state)}
    </span>
  );
}

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { kind?: string };

export function Button({ kind = "", className = "", ...rest }: ButtonProps) {
  return <button type="button" className={`btn ${kind} ${className}`} {...rest} />;
}

export function Card({
  title,
  actions,
  children,
  flush,
}: {
  title?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
  flush?: boolean;
}) {
  return (
    <section className="card">
      {title && (
        <header>
          <h2 className="grow">{title}</h2>
          {actions}
        </header>
      )}
      {flush ? children : <div className="body">{children}</div>}
    </section>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <Inbox aria-hidden />
      <b>{title}</b>
      {children}
    </div>
  );
}

export function Problem({ error }: { error: unknown }) {
  return error ? (
    <div className="notice" role="alert">
      {reasonOf(error)}
    </div>
  ) : null;
}

/** Shows loaded data, a placeholder while it loads, or the error. */
export function Loaded<T>({
  query,
  children,
}: {
  query: { data: T | undefined; error: unknown; isPending: boolean };
  children: (data: T) => ReactNode;
}) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error) return <Problem error={query.error} />;
  return (
    <div className="skeleton" aria-busy="true">
      Loading
    </div>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <Button kind="ghost icon s" aria-label={label} title={label} onClick={() => void copy()}>
      {done ? <Check /> : <Copy />}
    </Button>
  );
}

export function Code({ text }: { text: string }) {
  return (
    <div className="code">
      <pre tabIndex={0}>{text}</pre>
      <CopyButton text={text} />
    </div>
  );
}

export function Fields({ of }: { of: [string, ReactNode][] }) {
  return (
    <dl className="kv">
      {of.map(([name, value]) => [<dt key={`${name}-t`}>{name}</dt>, <dd key={name}>{value ?? "–"}</dd>])}
    </dl>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ReactNode }) {
  return (
    <label className="field">
      <span>{label}</span>
      {children}
      {hint && <small>{hint}</small>}
    </label>
  );
}

export function Table({
  head,
  rows,
  empty,
}: {
  head: string[];
  rows: { key: string; cells: ReactNode[] }[];
  empty?: ReactNode;
}) {
  if (!rows.length && empty) return <>{empty}</>;
  return (
    <div className="table-scroll">
      <table>
        <thead>
          <tr>
            {head.map((name, at) => (
              <th key={name || at} scope="col">
                {name || <span className="visually-hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ key, cells }) => (
            <tr key={key}>
              {cells.map((cell, at) => (
                <td key={at} className={at === cells.length - 1 && !head[at] ? "end" : ""}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function PageHead({ title, children }: { title: ReactNode; children?: ReactNode }) {
  return (
    <div className="head">
      <h1 className="grow cut">{title}</h1>
      {children}
    </div>
  );
}

/** Tabs that are links, so that each has an address. */
export function TabLinks({
  base,
  tabs,
  current,
}: {
  base: string;
  tabs: [string, string][];
  current: string;
}) {
  return (
    <nav className="tabs" aria-label="Sections">
      {tabs.map(([key, label]) => (
        <Link
          key={key}
          to={key ? `${base}/${key}` : base}
          className={`tab ${key === current ? "active" : ""}`}
          aria-current={key === current ? "page" : undefined}
        >
          {label}
        </Link>
      ))}
    </nav>
  );
}

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}
const ToastContext = createContext<(text: string, bad?: boolean) => void>(() => {});

export function Toasts({ children }: { children: ReactNode }) {
  const [toasts, setToasts] = useState<Toast[]>([]);
  const add = useCallback((text: string, bad = false) => {
    const id = Math.random();
    setToasts((all) => [...all.slice(-3), { id, text, bad }]);
    setTimeout(() => setToasts((all) => all.filter((toast) => toast.id !== id)), bad ? 12_000 : 4_000);
  }, []);
  return (
    <ToastContext value={add}>
      {children}
      <div className="toasts" role="status" aria-live="polite">
        {toasts.map((toast) => (
          <div key={toast.id} className={`toast ${toast.bad ? "bad" : ""}`}>
            <span className="grow">{toast.text}</span>
            <Button
              kind="ghost icon s"
              aria-label="Dismiss"
              onClick={() => setToasts((all) => all.filter(({ id }) => id !== toast.id))}
            >
              <X />
            </Button>
          </div>
        ))}
      </div>
    </ToastContext>
  );
}

/** Runs an action and shows its result. Resolves to whether it succeeded. */
export function useAct(): (work: () => Promise<unknown>, done?: string) => Promise<boolean> {
  const toast = useContext(ToastContext);
  return useCallback(
    async (work, done) => {
      try {
        await work();
        if (done) toast(done);
        return true;
      } catch (error) {
        toast(reasonOf(error), true);
        return false;
      }
    },
    [toast],
  );
}
