"""One small app per row of the table of what is found, each with packages from the registries.

Every page shows, in `h1`, a text that only the app's own machinery can put there, and has a colour of its own. Packages of
npm's registry are locked by the files in `sample_locks/`: what is installed stays what it was, and an emulated npm need not read
about every version there ever was. npm installs the sample of Vite; the others are Bun's, which takes a twentieth of npm's time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional

LOCKS = Path(__file__).with_name("sample_locks")


@dataclass(frozen=True)
class Sample:
    """A source, what must be found in it, and what its page must show."""

    framework: str
    files: Dict[str, str]
    heading: str
    colour: str
    env: Dict[str, str] = field(default_factory=dict)
    #: Of its machines; `None`: what the template says.
    memory_mb: Optional[int] = None


def package(sample: str, **more: Any) -> Dict[str, str]:
    """package.json, and the lock file that was written for it."""
    manifest = {"name": "sample", "version": "1.0.0", "private": True, **more}
    locks = {path.name: path.read_text() for path in (LOCKS / sample).iterdir()}
    return {"package.json": json.dumps(manifest), **locks}


def page(colour: str, body: str) -> str:
    return f'<!doctype html><html><head><style>body {{ background: {colour} }}</style></head><body>{body}</body></html>'


REACT = {"react": "19.3.1", "react-dom": "19.3.1"}

STATIC = Sample(
    "static",
    {
        "index.html": '<!doctype html><link rel="stylesheet" href="style.css"><h1></h1><script src="say.js"></script>',
        "style.css": "body { background: #102030 }",
        "say.js": 'document.querySelector("h1").textContent = "static " + 6 * 7',
    },
    "static 42", "#102030",
)

NODE = Sample(
    "node",
    {
        **package("node", dependencies={"express": "5.3.0"}, scripts={"start": "node server.js"}),
        "server.js": """
const express = require("express"), app = express();
app.get("/", (_, answer) => answer.type("html").send(PAGE.replace("WHO", "express " + process.env.GREETING)));
app.listen(process.env.PORT, "0.0.0.0");
const PAGE = `%s`;
""" % page("#203040", "<h1>WHO</h1>"),
    },
    "express good morning", "#203040", {"GREETING": "good morning"},
)

VITE = Sample(
    "vite",
    {
        **package(
            "vite", type="module", scripts={"build": "vite build"}, dependencies=REACT,
            devDependencies={"vite": "8.3.4", "@vitejs/plugin-react": "6.1.2"},
        ),
        "vite.config.js": 'import react from "@vitejs/plugin-react";\nexport default { plugins: [react()] };\n',
        "index.html": '<!doctype html><div id="root"></div><script type="module" src="/src/main.jsx"></script>',
        "src/main.jsx": """
import { createRoot } from "react-dom/client";
import "./style.css";
const App = () => <h1>vite at {location.pathname} {import.meta.env.VITE_FLAVOUR}</h1>;
createRoot(document.getElementById("root")).render(<App />);
""",
        "src/style.css": "body { background: #304050 }",
    },
    "vite at / sweet", "#304050", {"VITE_FLAVOUR": "sweet"},
)

NEXT = Sample(
    "next",
    {
        **package("next", dependencies={"next": "16.4.2", **REACT}),
        "app/layout.js": 'import "./style.css";\nexport default ({ children }) => <html><body>{children}</body></html>;\n',
        "app/page.js": """
import Counter from "./counter";
export const dynamic = "force-dynamic";
export default () => <Counter from={process.env.GREETING} />;
""",
        "app/counter.js": """
"use client";
import { useEffect, useState } from "react";
export default function Counter({ from }) {
  const [count, setCount] = useState(0);
  useEffect(() => setCount(1), []);
  return <h1>next {from} {count}</h1>;
}
""",
        "app/style.css": "body { background: #405060 }",
    },
    "next good morning 1", "#405060", {"GREETING": "good morning"}, memory_mb=2048,
)

CRA = Sample(
    "cra",
    {
        **package(
            "cra", dependencies={"react-scripts": "5.0.1", "react": "18.3.1", "react-dom": "18.3.1"},
            scripts={"start": "react-scripts start", "build": "react-scripts build"},
            browserslist=["last 1 chrome version"],
        ),
        "public/index.html": '<!doctype html><div id="root"></div>',
        "src/index.js": """
import { createRoot } from "react-dom/client";
import "./style.css";
createRoot(document.getElementById("root")).render(<h1>cra {process.env.REACT_APP_FLAVOUR}</h1>);
""",
        "src/style.css": "body { background: #506070 }",
    },
    "cra sweet", "#506070", {"REACT_APP_FLAVOUR": "sweet"}, memory_mb=2048,
)

DJANGO = Sample(
    "python",
    {
        "requirements.txt": "django==5.2.19\n",
        "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
execute_from_command_line(sys.argv)
""",
        "shop/__init__.py": "",
        "shop/settings.py": """
SECRET_KEY = "sample"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": ["pages"]}]
""",
        "shop/urls.py": """
from django.shortcuts import render
from django.urls import path
urlpatterns = [path("", lambda request: render(request, "home.html", {"who": "django"}))]
""",
        "shop/wsgi.py": """
import os
from django.core.wsgi import get_wsgi_application
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
application = get_wsgi_application()
""",
        "pages/home.html": page("#607080", "<h1>{{ who|upper }}</h1>"),
    },
    "DJANGO", "#607080",
)

FASTAPI = Sample(
    "python",
    {
        "requirements.txt": "fastapi==0.162.4\n",
        "main.py": '''
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

service = FastAPI()
PAGE = """%s"""

@service.get("/", response_class=HTMLResponse)
async def home() -> str:
    return PAGE

@service.get("/square/{number}")
async def square(number: int) -> dict:
    return {"square": number * number}
''' % page("#708090", '<h1></h1><script>fetch("/square/12").then(answer => answer.json()).then(said => '
                      'document.querySelector("h1").textContent = "fastapi " + said.square)</script>'),
    },
    "fastapi 144", "#708090",
)

FLASK = Sample(
    "python",
    {
        "requirements.txt": "flask==3.1.3\ngunicorn==27.0.0\n",
        "app.py": """
from flask import Flask, render_template
site = Flask(__name__)

@site.get("/")
def home():
    return render_template("home.html", who="flask")
""",
        "templates/home.html": page("#8090a0", "<h1>{{ who|title }}</h1>"),
    },
    "Flask", "#8090a0",
)

PLAIN = Sample(
    "python",
    {
        "main.py": """
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.replace("WHO", "python " + os.environ["GREETING"]).encode())

PAGE = '''%s'''
HTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
""" % page("#90a0b0", "<h1>WHO</h1>"),
    },
    "python good morning", "#90a0b0", {"GREETING": "good morning"},
)

SAMPLES = {
    "static": STATIC, "node": NODE, "vite": VITE, "next": NEXT, "cra": CRA,
    "django": DJANGO, "fastapi": FASTAPI, "flask": FLASK, "plain": PLAIN,
}
