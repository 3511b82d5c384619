//! Servers, installers and versions of Python.

use super::*;

#[test]
fn python_servers_are_detected_by_their_app_object() {
    let added =
        |server: &str| format!(" && /usr/bin/python3 -m pip --python /srv/venv/bin/python install {server}");
    for (files, install, start, because) in [
        (
            vec![
                ("requirements.txt", "fastapi\nuvicorn\n"),
                ("main.py", "from fastapi import FastAPI\napi = FastAPI()\n"),
            ],
            pip("-r requirements.txt"),
            "exec uvicorn main:api --host 0.0.0.0 --port $PORT",
            "main.py assigns FastAPI(...) to `api`",
        ),
        (
            vec![
                ("requirements.txt", "fastapi\n"),
                ("app/server.py", "import fastapi\nweb: object = fastapi.FastAPI(title='a.b')\n"),
            ],
            pip("-r requirements.txt") + &added("uvicorn"),
            "exec uvicorn app.server:web --host 0.0.0.0 --port $PORT",
            "uvicorn is added",
        ),
        (
            vec![("requirements.txt", "Flask==3\ngunicorn\n"), ("app.py", "app = Flask(__name__)\n")],
            pip("-r requirements.txt"),
            "exec gunicorn --bind 0.0.0.0:$PORT app:app",
            "Flask(",
        ),
        (
            vec![
                ("requirements.txt", "starlette\nuvicorn[standard]\n"),
                ("app.py", "app = Starlette(routes=[])\n"),
            ],
            pip("-r requirements.txt"),
            "exec uvicorn app:app --host 0.0.0.0 --port $PORT",
            "Starlette(",
        ),
        (
            vec![
                ("requirements.txt", "Django>=5\n"),
                ("manage.py", "x"),
                ("site1/settings.py", "A = 1\nWSGI_APPLICATION = 'site1.wsgi.application'\n"),
            ],
            pip("-r requirements.txt") + &added("gunicorn"),
            "exec gunicorn --bind 0.0.0.0:$PORT site1.wsgi:application",
            "make it Django",
        ),
    ] {
        check(
            &files,
            Row {
                framework: "python",
                install: Some(Box::leak(install.into_boxed_str())),
                build: None,
                serve: command(start),
                because,
            },
        );
    }
    check(
        &[("main.py", "print(1)")],
        Row {
            framework: "python",
            install: None,
            build: None,
            serve: command("exec python3 main.py"),
            because: "run as a program",
        },
    );
}

#[test]
fn python_installers_are_detected_by_their_lock_files() {
    for (files, part) in [
        (vec![("uv.lock", ""), ("pyproject.toml", "[project]")], "uv sync --locked --no-dev"),
        (vec![("poetry.lock", ""), ("pyproject.toml", "")], "poetry install --only main"),
        (vec![("pdm.lock", ""), ("pyproject.toml", "")], "pdm sync --prod"),
        (vec![("Pipfile", "")], "pipenv install"),
        (vec![("pyproject.toml", "[project]\nname='a'")], "python install ."),
        (vec![("requirements.txt", ""), ("uv.lock", "")], "-r requirements.txt"),
    ] {
        let mut files = files;
        files.push(("main.py", ""));
        let plan = detect(&view(&files), &UserSettings::default()).unwrap();
        assert!(plan.install.as_deref().unwrap_or_default().contains(part), "{files:?}: {:?}", plan.install);
    }
}

#[test]
fn the_requested_python_version_is_detected() {
    let check = |file: &str, text: &str, expect: Option<&str>| {
        let plan = detect(&view(&[("main.py", ""), (file, text)]), &UserSettings::default()).unwrap();
        let expect = expect.map(|version| (version, file));
        assert_eq!(plan.python.as_ref().map(|wish| (wish.wanted.as_str(), wish.file)), expect, "{text}");
    };
    check(".python-version", "3.11.4\n", Some("3.11"));
    check(".python-version", "cpython@3.12", Some("3.12"));
    check("runtime.txt", "python-3.10.1\n", Some("3.10"));
    check(".tool-versions", "nodejs 20.1.0\npython 3.9.2\n", Some("3.9"));
    check("Pipfile", "[requires]\npython_version = \"3.8\"\n", Some("3.8"));
    check("pyproject.toml", "[project]\nname = \"a\"\nrequires-python = \">=3.12\"\n", Some(">=3.12"));
    check("pyproject.toml", "[tool.poetry.dependencies]\npython = \"^3.11\"\n", Some("^3.11"));
    check("pyproject.toml", "[project]\nname = \"a\"\n", None);
    check("pyproject.toml", "not [ toml", None);
    for nothing in ["3", "pypy3.10", ">=3.11", "system", ""] {
        check(".python-version", nothing, None);
    }
}
