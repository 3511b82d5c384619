/** CodeMirror, with the colours of the page. */

import { autocompletion, closeBrackets } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { json } from "@codemirror/lang-json";
import { python } from "@codemirror/lang-python";
import { PostgreSQL, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword], color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--amber)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--blue)" },
  { tag: tags.comment, color: "var(--faint)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.typeName, tags.propertyName], color: "var(--blue)" },
]);

function languageOf(path: string): Extension {
  if (/\.sql$/.test(path)) return sql({ dialect: PostgreSQL, upperCaseKeywords: true });
  if (/\.(py|pyi)$/.test(path)) return python();
  if (/\.json$/.test(path)) return json();
  if (/\.[cm]?[jt]sx?$/.test(path)) return javascript({ typescript: /ts/.test(path), jsx: /x$/.test(path) });
  return [];
}

/** `path` decides the language; a new one is a new document. */
export default function Editor({
  path,
  text,
  label,
  readOnly,
  onChange,
  onSubmit,
}: {
  path: string;
  text: string;
  label: string;
  readOnly?: boolean;
  onChange?: (text: string) => void;
  onSubmit?: () => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const calls = useRef({ onChange, onSubmit });
  calls.current = { onChange, onSubmit };
  useEffect(() => {
    if (!box.current) return;
    const submit = { key: "Mod-Enter", run: () => (calls.current.onSubmit?.(), true) };
    const view = new EditorView({
      parent: box.current,
      state: EditorState.create({
        doc: text,
        extensions: [
          keymap.of([submit, ...defaultKeymap, ...historyKeymap, ...searchKeymap, indentWithTab]),
          lineNumbers(),
          history(),
          drawSelection(),
          highlightActiveLine(),
          bracketMatching(),
          closeBrackets(),
          autocompletion(),
          highlightSelectionMatches(),
          syntaxHighlighting(COLOURS),
          languageOf(path),
          EditorState.readOnly.of(readOnly ?? false),
          EditorView.contentAttributes.of({ "aria-label": label }),
          EditorView.updateListener.of(
            (update) => update.docChanged && calls.current.onChange?.(update.state.doc.toString()),
          ),
        ],
      }),
    });
    return () => view.destroy();
    // The text is only the initial value of the document.
  }, [path, readOnly, label]);
  return <div className="editor" ref={box} />;
}
