"""Draws MuJoCo's scenes where there is no display: finds a GL library that works, and asks it for less."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from agentkit.errors import ConfigError

_PACKAGES = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
"""Which Debian and Ubuntu packages bring each library."""

_SHADOW_SIZE = 1024
"""The most texels of the map of shadows, along each axis."""

_TEXELS_PER_PIXEL = 4
"""Texels of that map for each pixel of the image."""


def has_display() -> bool:
    """Returns whether a window can be opened."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def prepare_pygame() -> None:
    """Lets pygame draw images without a display, where it would print that it looked for one in vain."""
    if not has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def prepare_mujoco(model: Any, pixels: int = _SHADOW_SIZE) -> str | None:
    """Makes a MuJoCo model ready to be drawn; call it before its first image.

    Without a display it picks EGL or else OSMesa, sets ``MUJOCO_GL`` for both simulators, and turns off what costs
    most without a graphics card: smooth edges, and shadows finer than a small image shows. A frame then takes a quarter
    of the time, a small one less. The simulation is untouched.

    Args:
        model: an `mujoco.MjModel`; another simulator's, or None, is left alone.
        pixels: the longer side of the images.

    Returns:
        The library that was picked; None where nothing was to be done.

    Raises:
        ConfigError: none works; the message says which package to install.
    """
    if not type(model).__module__.startswith("mujoco") or has_display():
        return None
    backend = _pick()
    model.vis.quality.offsamples = 0
    model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, _SHADOW_SIZE, _TEXELS_PER_PIXEL * pixels)
    return backend


def prepare_gymnasium(environment: Any) -> None:
    """Makes a gymnasium environment without its wrappers ready to be drawn; call it before its first image.

    See `prepare_mujoco`. Where MuJoCo's free camera would stay behind, as in HalfCheetah, Ant and Swimmer of gymnasium
    1.4, the model's own camera that follows is taken, unless the environment was made with another view.
    """
    model: Any = getattr(environment, "model", None)
    prepare_mujoco(model)
    renderer: Any = getattr(environment, "mujoco_renderer", None)
    if getattr(renderer, "camera_id", None) != _FREE_CAMERA:  # No MuJoCo, or it was made with a camera.
        return
    given = getattr(getattr(environment, "spec", None), "kwargs", {})
    if _VIEWS & given.keys() or "trackbodyid" in (renderer.default_cam_config or {}):
        return
    for number, mode in enumerate(model.cam_mode):
        if mode in _FOLLOWING:
            renderer.camera_id = number
            return


_VIEWS = {"camera_id", "camera_name", "default_camera_config"}
_FREE_CAMERA = -1
_FOLLOWING = (1, 2)  # MuJoCo's mjCAMLIGHT_TRACK and mjCAMLIGHT_TRACKCOM.

_picked: list[str] = []


def _pick() -> str:
    """Returns the first library that opens a context, tried once in a process."""
    if _picked:
        return _picked[0]
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked not in ("", *_PACKAGES):
        raise ConfigError(f"MUJOCO_GL={asked} draws nothing without a display. Unset it, or set it to egl or osmesa.")
    failures = []
    for backend in [asked] if asked else list(_PACKAGES):
        try:
            context = importlib.import_module(f"mujoco.{backend}").GLContext(16, 16)
            context.make_current()
            context.free()
        except Exception as error:  # Of many kinds: no library, no device, a function that it lacks.
            failures.append(f"{backend.upper()}: {_first_line(error)}")
            _forget_gl()
            continue
        os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = backend
        _picked.append(backend)
        return backend
    raise _no_library([asked] if asked else list(_PACKAGES), "; ".join(failures))


def explain_import(error: Exception, package: str) -> None:
    """Raises an error that says which package to install, if a library asked for by ``MUJOCO_GL`` is why.

    Args:
        error: what the import of a simulator raised.
        package: the simulator's.

    Raises:
        ConfigError: that library is not here.
    """
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked in _PACKAGES and importlib.util.find_spec(package) is not None:
        raise _no_library([asked], f"MUJOCO_GL={asked}: {_first_line(error)}") from error


def _no_library(tried: list[str], failures: str) -> ConfigError:
    packages = " or ".join(f"apt-get install {_PACKAGES[name]}" for name in tried)
    return ConfigError(
        f"MuJoCo cannot draw here: no GL library works without a display ({failures}). "
        f"Install one (Debian, Ubuntu): {packages}."
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:80] if str(error) else repr(error)


def _forget_gl() -> None:
    """Lets PyOpenGL be loaded anew, for another library."""
    os.environ.pop("PYOPENGL_PLATFORM", None)
    for name in [name for name in sys.modules if name == "OpenGL" or name.startswith("OpenGL.")]:
        del sys.modules[name]
