/** Frame of every page: navigation, search, theme. */

import {
  AppWindow,
  Box,
  CalendarClock,
  ChartNoAxesColumn,
  Database,
  HardDrive,
  House,
  KeyRound,
  Layers,
  LogOut,
  Moon,
  Search,
  Server,
  Sun,
  Webhook,
  Zap,
} from "lucide-react";
import { lazy, type ReactNode, Suspense, useEffect, useState } from "react";
import { Link, NavLink, Outlet, useLocation, useRouteError } from "react-router";
import { reasonOf, useCan, useMe } from "./api";
import { useLive } from "./live";
import { signOut } from "./session";
import { Button, Empty, useAct } from "./ui/basics";

const Palette = lazy(() => import("./palette"));

export const PLACES: { path: string; label: string; icon: ReactNode; group: string; admin?: boolean }[] = [
  { path: "/", label: "Overview", icon: <House />, group: "" },
  { path: "/sandboxes", label: "Sandboxes", icon: <Box />, group: "" },
  { path: "/databases", label: "Databases", icon: <Database />, group: "" },
  { path: "/apps", label: "Apps", icon: <AppWindow />, group: "" },
  { path: "/functions", label: "Functions", icon: <Zap />, group: "" },
  { path: "/schedules", label: "Schedules", icon: <CalendarClock />, group: "" },
  { path: "/volumes", label: "Volumes", icon: <HardDrive />, group: "" },
  { path: "/templates", label: "Templates", icon: <Layers />, group: "" },
  { path: "/usage", label: "Usage", icon: <ChartNoAxesColumn />, group: "Workspace" },
  { path: "/webhooks", label: "Webhooks", icon: <Webhook />, group: "Workspace" },
  { path: "/keys", label: "Keys and sessions", icon: <KeyRound />, group: "Workspace", admin: true },
  { path: "/hosts", label: "Hosts", icon: <Server />, group: "Installation", admin: true },
];

export function Shell() {
  const [searching, setSearching] = useState(false);
  const can = useCan();
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setSearching((open) => !open);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const places = PLACES.filter(({ admin }) => !admin || can("admin"));
  return (
    <div className="shell">
      <aside className="side">
        <Link to="/" className="brand">
          <img src="/console/favicon.svg" alt="" />
          PandaStack
        </Link>
        <nav aria-label="Main">
          {places.map(({ path, label, icon, group }, at) => [
            group && places[at - 1]?.group !== group ? (
              <div key={group} className="group">
                {group}
              </div>
            ) : null,
            <NavLink key={path} to={path} end={path === "/"} className="nav">
              {icon}
              {label}
            </NavLink>,
          ])}
        </nav>
      </aside>
      <div className="main">
        <Top onSearch={() => setSearching(true)} />
        <main className="page">
          <div className="inner">
            <Suspense
              fallback={
                <div className="skeleton" aria-busy="true">
                  Loading
                </div>
              }
            >
              <Outlet />
            </Suspense>
          </div>
        </main>
      </div>
      {searching && (
        <Suspense fallback={null}>
          <Palette onClose={() => setSearching(false)} />
        </Suspense>
      )}
    </div>
  );
}

function Top({ onSearch }: { onSearch: () => void }) {
  const { connected } = useLive();
  const me = useMe().data;
  const act = useAct();
  const parts = useLocation().pathname.split("/").filter(Boolean);
  useEffect(() => {
    document.title = [...parts].reverse().concat("PandaStack").join(" · ");
  }, [parts]);
  return (
    <header className="top">
      <div className="crumbs">
        <span className="cut">{String(me?.workspace ?? "")}</span>
        {parts.slice(0, 2).map((part, at) => [
          <span key={`${part}-s`} className="faint" aria-hidden>
            /
          </span>,
          at === Math.min(parts.length, 2) - 1 ? (
            <b key={part} className="cut">
              {part}
            </b>
          ) : (
            <Link key={part} to={`/${part}`}>
              {part}
            </Link>
          ),
        ])}
      </div>
      <span className={`live ${connected ? "" : "off"}`}>
        <i aria-hidden />
        <span className="wide-only">{connected ? "Live" : "Reconnecting"}</span>
      </span>
      <Button kind="s" onClick={onSearch}>
        <Search />
        <span className="wide-only">Search</span>
        <span className="kbd wide-only">Ctrl K</span>
      </Button>
      <ThemeButton />
      <Button kind="ghost icon" aria-label="Sign out" title="Sign out" onClick={() => void act(signOut)}>
        <LogOut />
      </Button>
    </header>
  );
}

function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "light");
  const other = theme === "dark" ? "light" : "dark";
  const change = (): void => {
    document.documentElement.dataset.theme = other;
    localStorage.setItem("theme", other);
    setTheme(other);
    dispatchEvent(new Event("themechange"));
  };
  return (
    <Button
      kind="ghost icon"
      aria-label={`Use the ${other} theme`}
      title={`Use the ${other} theme`}
      onClick={change}
    >
      {theme === "dark" ? <Sun /> : <Moon />}
    </Button>
  );
}

export function Crashed() {
  const error = useRouteError();
  return (
    <Empty title="This page cannot be displayed">
      <span>{reasonOf(error)}</span>
      <a className="link" href="/console/">
        Back to the overview
      </a>
    </Empty>
  );
}
