"""The secret key, and whether it is the one that the database was written with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import ConditionFailed, SettingsError
from waystation.patterns import KeyCheck, Vault
from waystation.store import absent

if TYPE_CHECKING:
    from waystation.settings import Settings
    from waystation.store import Store

_CONTEXT = "key check"
_ID = "1"


async def open_vault(settings: Settings, store: Store) -> Vault:
    """The vault; SettingsError when its key is gone, or not the one used so far.

    Going on with another key would make what was encrypted unreadable, and what is encrypted from
    now on unreadable once the right key is back.
    """
    check = await store.get(KeyCheck.key(_ID))
    path = settings.key_path
    if check is not None and path is not None and not path.exists():
        raise SettingsError(f"{path} is gone: put it back, this database was written with it")
    vault = Vault(settings.key())
    if check is None:
        sealed = vault.seal(_CONTEXT.encode(), _CONTEXT)
        try:
            await store.put(KeyCheck(check_id=_ID, sealed=sealed), when=absent())
        except ConditionFailed as failed:
            check = failed.item
    if check is not None:
        try:
            vault.open(check.sealed, _CONTEXT)
        except SettingsError:
            raise SettingsError("secret_key: this database was written with another key") from None
    return vault
