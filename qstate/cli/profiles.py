"""The profile file: named sets of addresses, TLS files and a token, for commands that connect to a job.

Rules of this module: one TOML file in, checked settings out. It must not know what they are used for. The file decides
whom commands trust and where tokens go, so only files that no other user can change count.

    [flights]
    proxy = ["executor-1:9069", "executor-2:9069"]
    tls_ca = "flights-ca.pem"            # beside this file
    token_file = "flights.token"
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qstate.errors import ConfigError
from qstate.host.home import in_home
from qstate.host.private_files import check_secret, open_trusted
from qstate.setting_values import WORDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DEFAULT_PROFILE", "SETTINGS", "profile", "profile_file", "profile_names"]

DEFAULT_PROFILE = "default"
MOST_BYTES = 1 << 16
#: What a profile may have, and the types. A list of text may also be one text.
SETTINGS: Mapping[str, type] = {
    "proxy": list,
    "fallback": list,
    "timeout": float,
    "token": str,
    "token_file": str,
    "tls": bool,
    "tls_ca": str,
    "tls_certificate": str,
    "tls_key": str,
    "tls_server_name": str,
    "allow_token_without_tls": bool,
}
#: Settings that name a file; a relative name is relative to the profile file.
FILES = ("token_file", "tls_ca", "tls_certificate", "tls_key")


def profile_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the profiles are: `qstate/profiles.toml` in `$XDG_CONFIG_HOME`, by default `~/.config`."""
    home = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return in_home(home) / "qstate" / "profiles.toml"


def profile(name: str | None) -> Mapping[str, Any]:
    """The settings of a profile; None: those of the profile `default`, if there is one. Raises `ConfigError`."""
    path = profile_file()
    if name is None and not path.exists():
        return {}
    profiles = _read(path)
    wanted = DEFAULT_PROFILE if name is None else name
    if wanted not in profiles:
        if name is None:
            return {}
        raise ConfigError(f"no profile {name!r} in {path}; the profiles are: {', '.join(sorted(profiles)) or 'none'}")
    return _settings(path, wanted, profiles[wanted])


def profile_names() -> list[str]:
    """The names of all profiles. Raises `ConfigError`."""
    path = profile_file()
    return sorted(_read(path)) if path.exists() else []


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with os.fdopen(open_trusted(path), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0):
                raise PermissionError(0, "belongs to another user")
            data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise ConfigError(f"{path} has more than {MOST_BYTES} bytes: profiles are short")
            profiles: Mapping[str, Any] = tomllib.loads(data.decode())
            if any(isinstance(one, Mapping) and "token" in one for one in profiles.values()):
                check_secret(file.fileno(), path)
    except FileNotFoundError:
        raise ConfigError(f"there are no profiles: {path} does not exist") from None
    except OSError as exc:
        raise ConfigError(f"the profiles in {path} cannot be used: {exc.strerror}") from exc
    except ValueError as exc:  # no UTF-8, or no TOML; the text may be a secret, and is not shown
        raise ConfigError(f"{path} is no TOML: {exc}") from None
    for name, found in profiles.items():
        if not isinstance(found, Mapping):
            raise ConfigError(f"{path}: {name!r} is not in a profile: write [{DEFAULT_PROFILE}] in a line above it")
    return profiles


def _settings(path: Path, name: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
    place = f"profile {name!r} in {path}"
    settings = {}
    for setting, value in found.items():
        if setting not in SETTINGS:
            raise ConfigError(f"{place}: unknown setting {setting!r}; valid are: {', '.join(SETTINGS)}")
        settings[setting] = _checked(place, setting, value)
    if "token" in settings and "token_file" in settings:
        raise ConfigError(f"{place}: token and token_file are both set; give one of them")
    for setting in settings.keys() & FILES:
        settings[setting] = str(path.parent / in_home(settings[setting]))
    return settings


def _checked(place: str, setting: str, value: Any) -> Any:
    kind = SETTINGS[setting]
    if kind is list:
        found = [value] if isinstance(value, str) else value
        if isinstance(found, list) and found and all(isinstance(one, str) for one in found):
            return found
        raise ConfigError(f'{place}: {setting} must be addresses, as in ["localhost:9069"]')
    if kind is float and type(value) is int:
        return float(value)
    if value == "":
        raise ConfigError(f"{place}: {setting} is empty: give it a value, or leave it out")
    if type(value) is not kind:
        raise ConfigError(f"{place}: {setting} must be {WORDS[kind]}, got a value of type {type(value).__name__}")
    return value
