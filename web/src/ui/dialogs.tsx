/** Dialogs and menus. */

import { Dialog, DropdownMenu } from "radix-ui";
import { type ReactNode, useState } from "react";
import { Button, Field, useAct } from "./basics";

export function Modal({
  title,
  hint,
  wide,
  open,
  onClose,
  children,
}: {
  title: string;
  hint?: string;
  wide?: boolean;
  open: boolean;
  onClose: () => void;
  children: ReactNode;
}) {
  return (
    <Dialog.Root open={open} onOpenChange={(next) => next || onClose()}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content
          className={`dialog ${wide ? "wide" : ""}`}
          {...(hint ? {} : { "aria-describedby": undefined })}
        >
          <Dialog.Title asChild>
            <h1>{title}</h1>
          </Dialog.Title>
          {hint && <Dialog.Description className="muted">{hint}</Dialog.Description>}
          {children}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

/** Asks before something is destroyed: the name must be typed. */
export function ConfirmByName({
  title,
  hint,
  name,
  action = "Delete",
  open,
  onClose,
  onConfirm,
}: {
  title: string;
  hint: string;
  name: string;
  action?: string;
  open: boolean;
  onClose: () => void;
  onConfirm: () => Promise<unknown>;
}) {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const act = useAct();
  const confirm = async (): Promise<void> => {
    if (typed !== name || busy) return;
    setBusy(true);
    if (await act(onConfirm)) close();
    setBusy(false);
  };
  const close = (): void => {
    setTyped("");
    onClose();
  };
  return (
    <Modal title={title} hint={hint} open={open} onClose={close}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void confirm();
        }}
      >
        <Field label={`Type ${name} to confirm`}>
          <input
            className="input mono"
            autoFocus
            autoComplete="off"
            spellCheck={false}
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        </Field>
        <div className="actions">
          <Button onClick={close}>Cancel</Button>
          <Button kind="danger solid" type="submit" disabled={typed !== name || busy}>
            {action}
          </Button>
        </div>
      </form>
    </Modal>
  );
}

/** Asks for one line of text. */
export function Ask({
  title,
  hint,
  label,
  action,
  initial = "",
  optional,
  open,
  onClose,
  onAnswer,
}: {
  title: string;
  hint?: string;
  label: string;
  action: string;
  initial?: string;
  optional?: boolean;
  open: boolean;
  onClose: () => void;
  onAnswer: (text: string) => Promise<unknown>;
}) {
  const [text, setText] = useState(initial);
  const [busy, setBusy] = useState(false);
  const act = useAct();
  const answer = async (): Promise<void> => {
    setBusy(true);
    if (await act(() => onAnswer(text.trim()))) onClose();
    setBusy(false);
  };
  return (
    <Modal title={title} {...(hint ? { hint } : {})} open={open} onClose={onClose}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void answer();
        }}
      >
        <Field label={label}>
          <input className="input" autoFocus value={text} onChange={(event) => setText(event.target.value)} />
        </Field>
        <div className="actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={busy || (!optional && !text.trim())}>
            {action}
          </Button>
        </div>
      </form>
    </Modal>
  );
}

export interface MenuEntry {
  label: string;
  icon?: ReactNode;
  danger?: boolean;
  onSelect: () => void;
}

export function Menu({ trigger, entries }: { trigger: ReactNode; entries: MenuEntry[] }) {
  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger asChild>{trigger}</DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content className="menu" align="end" sideOffset={6}>
          {entries.map((entry) => (
            <DropdownMenu.Item
              key={entry.label}
              className={`menu-item ${entry.danger ? "danger" : ""}`}
              onSelect={entry.onSelect}
            >
              {entry.icon}
              {entry.label}
            </DropdownMenu.Item>
          ))}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}
