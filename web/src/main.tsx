/** The page: providers, routes, and the sign-in form. */

import { QueryClientProvider } from "@tanstack/react-query";
import { lazy, StrictMode, Suspense } from "react";
import { createRoot } from "react-dom/client";
import { createBrowserRouter, RouterProvider } from "react-router";
import { queries } from "./api";
import { Overview } from "./pages/overview";
import { Sandboxes } from "./pages/sandboxes";
import { Session } from "./session";
import { Crashed, Shell } from "./shell";
import "./styles.css";
import { Toasts } from "./ui/basics";

const SandboxPage = lazy(() => import("./pages/sandbox"));
const Databases = lazy(() => import("./pages/databases"));
const DatabasePage = lazy(() => import("./pages/database"));
const Apps = lazy(() => import("./pages/apps"));
const AppPage = lazy(() => import("./pages/app"));
const Functions = lazy(() => import("./pages/functions"));
const Schedules = lazy(() => import("./pages/schedules"));
const Volumes = lazy(() => import("./pages/volumes"));
const Templates = lazy(() => import("./pages/templates"));
const Usage = lazy(() => import("./pages/usage"));
const Keys = lazy(() => import("./pages/keys"));
const Webhooks = lazy(() => import("./pages/webhooks"));
const Hosts = lazy(() => import("./pages/hosts"));

const router = createBrowserRouter(
  [
    {
      element: <Shell />,
      errorElement: <Crashed />,
      children: [
        { index: true, element: <Overview /> },
        { path: "sandboxes", element: <Sandboxes /> },
        { path: "sandboxes/:id/:tab?", element: <SandboxPage /> },
        { path: "databases", element: <Databases /> },
        { path: "databases/:id/:tab?", element: <DatabasePage /> },
        { path: "apps", element: <Apps /> },
        { path: "apps/:name/:tab?", element: <AppPage /> },
        { path: "functions/:name?", element: <Functions /> },
        { path: "schedules/:id?", element: <Schedules /> },
        { path: "volumes", element: <Volumes /> },
        { path: "templates", element: <Templates /> },
        { path: "usage", element: <Usage /> },
        { path: "webhooks/:id?", element: <Webhooks /> },
        { path: "keys", element: <Keys /> },
        { path: "hosts", element: <Hosts /> },
      ],
    },
  ],
  { basename: "/console" },
);

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <Toasts>
          <Session>
            <Suspense fallback={null}>
              <RouterProvider router={router} />
            </Suspense>
          </Session>
        </Toasts>
      </QueryClientProvider>
    </StrictMode>,
  );
}
