/** Ctrl-K: find a page, a sandbox, a database or an app by name. */

import { Command } from "cmdk";
import { Box, Database, AppWindow, Plus } from "lucide-react";
import { Dialog } from "radix-ui";
import { useNavigate } from "react-router";
import { useApps, useCan, useDatabases, useSandboxes } from "./api";
import { PLACES } from "./shell";
import { Status } from "./ui/basics";

/** Maximum number of results shown: more would slow down typing. */
const SHOWN_MAX = 500;

export default function Palette({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const can = useCan();
  const go = (path: string) => (): void => {
    onClose();
    void navigate(path);
  };
  const [sandboxes, databases, apps] = [
    useSandboxes().data ?? [],
    useDatabases().data ?? [],
    useApps().data ?? [],
  ];
  return (
    <Dialog.Root open onOpenChange={(open) => open || onClose()}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog palette" aria-describedby={undefined}>
          <Dialog.Title className="visually-hidden">Search</Dialog.Title>
          <Command label="Search">
            <Command.Input placeholder="Search pages, sandboxes, databases and apps" autoFocus />
            <Command.List>
              <Command.Empty>No results</Command.Empty>
              <Command.Group heading="Pages">
                {PLACES.filter(({ admin }) => !admin || can("admin")).map(({ path, label, icon }) => (
                  <Command.Item key={path} value={label} onSelect={go(path)}>
                    {icon}
                    {label}
                  </Command.Item>
                ))}
                {can("sandboxes") && (
                  <Command.Item value="Create sandbox" onSelect={go("/sandboxes?create")}>
                    <Plus />
                    Create sandbox
                  </Command.Item>
                )}
              </Command.Group>
              {sandboxes.length > 0 && (
                <Command.Group heading="Sandboxes">
                  {sandboxes.slice(0, SHOWN_MAX).map((info) => (
                    <Command.Item
                      key={info.id}
                      value={`${info.metadata.name ?? ""} ${info.id} ${info.template}`}
                      onSelect={go(`/sandboxes/${info.id}`)}
                    >
                      <Box />
                      <span className="grow cut">{info.metadata.name ?? info.id}</span>
                      <Status value={info.status} />
                    </Command.Item>
                  ))}
                </Command.Group>
              )}
              {databases.length > 0 && (
                <Command.Group heading="Databases">
                  {databases.map((database) => (
                    <Command.Item
                      key={database.id}
                      value={`${database.label ?? ""} ${database.id}`}
                      onSelect={go(`/databases/${database.id}`)}
                    >
                      <Database />
                      <span className="grow cut">{database.label ?? database.id}</span>
                      <Status value={database.status} />
                    </Command.Item>
                  ))}
                </Command.Group>
              )}
              {apps.length > 0 && (
                <Command.Group heading="Apps">
                  {apps.map((app) => (
                    <Command.Item key={app.id} value={app.name} onSelect={go(`/apps/${app.name}`)}>
                      <AppWindow />
                      <span className="grow cut">{app.name}</span>
                      <Status value={app.status} />
                    </Command.Item>
                  ))}
                </Command.Group>
              )}
            </Command.List>
          </Command>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
