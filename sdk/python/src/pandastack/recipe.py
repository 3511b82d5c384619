"""Recipe of a template, in code instead of a Dockerfile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional, Sequence, Tuple

from . import _wire
from ._check import checked
from .errors import BadRequestError


@checked
@dataclass(frozen=True)
class TemplateRecipe:
    """Steps of a template build, in order. Each method returns a longer recipe and leaves this one as it is.

        recipe = TemplateRecipe("python:3.12").run("pip install flask").copy(".", dest="/app")
        client.templates.build("my-app", "path/to/dir", recipe=recipe)
    """

    #: A template, or a container image such as ``python:3.12``.
    base: str = "base"
    #: The steps so far, as the API takes them.
    steps: Tuple[Mapping[str, Any], ...] = ()
    #: Command that runs in every sandbox from the start.
    start_command: Optional[str] = None
    #: How to tell that it is ready.
    ready: Optional[Mapping[str, Any]] = None

    def __post_init__(self) -> None:
        if len(self.base.split()) != 1 or self.base != self.base.strip():
            raise BadRequestError(f"base {self.base!r} is not the name of a template or image")

    def _then(self, **step: Any) -> TemplateRecipe:
        return replace(self, steps=(*self.steps, step))

    def run(
        self,
        command: str,
        *,
        user: Optional[str] = None,
        secrets: Sequence[str] = (),
        no_cache: bool = False,
    ) -> TemplateRecipe:
        """Run a command. It finds ``secrets`` of the build in ``/run/secrets``, by their ids.

        ``no_cache`` runs it and the next steps though an earlier build did.
        """
        given = _wire.given(
            command=command, user=user, secrets=list(secrets) or None, no_cache=no_cache or None
        )
        return self._then(run=given)

    def copy(
        self,
        *sources: str,
        dest: str,
        owner: Optional[str] = None,
        mode: Optional[str] = None,
        no_cache: bool = False,
    ) -> TemplateRecipe:
        """Copy files of the build directory. ``mode`` is octal, such as ``"755"``."""
        given = _wire.given(
            sources=list(sources), dest=dest, owner=owner, mode=mode, no_cache=no_cache or None
        )
        return self._then(copy=given)

    def env(self, variables: Mapping[str, str]) -> TemplateRecipe:
        """Set environment variables. ``$NAME`` in a value is replaced."""
        return self._then(env=dict(variables))

    def workdir(self, path: str) -> TemplateRecipe:
        """Set the working directory, and create it."""
        return self._then(workdir=path)

    def user(self, name: str) -> TemplateRecipe:
        """Set the user of the next steps and of sandboxes."""
        return self._then(user=name)

    def start(self, command: str, *, ready: Optional[Mapping[str, Any]] = None) -> TemplateRecipe:
        """Run a command in every sandbox from the start. ``ready`` is a check, such as ``{"port": 8080}``."""
        return replace(self, start_command=command, ready=ready)
