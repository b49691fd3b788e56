"""What personal data looks like in what people write, in several countries.

Every pattern has bounded repetitions, so that the time taken grows with the length of the text
and with nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MASK = "***"

SECRETS = re.compile(
    r"\b(?:ws_live_|wsr_|whsec_|whsk_|xox[abeprs]-|(?:sk|pk|rk)_(?:live|test)_|gh[opsu]_|"
    r"shp(?:at|ca|pa|ss)_"
    r"|glpat-|github_pat_|npm_|hf_|sk-|AIza|ya29\.|SG\.)[\w./+=-]{4,512}"
    r"|\bAKIA[0-9A-Z]{12,20}\b"
    r"|(?<![\w-])eyJ[\w-]{8,2048}\.[\w-]{8,4096}\.[\w-]{8,1024}"
)
BEARER = re.compile(r"\b(bearer|basic)\s{1,4}[\w.~+/=-]{6,4096}", re.IGNORECASE)
EMAIL = re.compile(
    r"(?<![\w.+%'=/!#$&*?^{|}~-])[\w.+%'=/!#$&*?^{|}~-]{1,64}@(?:[\w-]{1,63}\.){1,8}[\w-]{2,24}\b"
)

_TRACKING_URL = re.compile(
    r"(?<![\w.@/-])(?:(?:https?://|www\.)[^\s<>\"]{0,200}?|"
    r"(?:[a-z0-9-]{1,40}\.){1,4}[a-z]{2,6}/[^\s<>\"]{0,200}?)"
    r"(?:track|trknbr|ups\.com|usps\.com|fedex\.com|dhl\.|suivre|suivi|sendung|seguimiento|"
    r"tracciatura|parcel|colis|envios?\b|shipment)[^\s<>\"]{0,512}",
    re.IGNORECASE,
)
_TRACKING = re.compile(
    r"\b1Z(?:\s?[0-9A-Z]){16}\b"  # UPS
    r"|\b[A-Z]{2}\s?\d{3}\s?\d{3}\s?\d{3}\s?[A-Z]{2}\b"  # postal unions
    r"|\b(?:GM|J[JV]?D|RX|LX|TBA|H0|JJ)\d{10,22}\b"  # DHL, Amazon, couriers
    r"|\b3S[0-9A-Z]{9,15}\b",  # PostNL
    re.IGNORECASE,
)
_MIXED = re.compile(
    r"(?<![\w-])(?!\d{8}T\d{6}Z)(?=[A-Z]{0,20}\d)(?=[0-9A-Z]{0,39}[A-Z])"
    r"(?:[A-Z]{0,6}\d){6,30}[A-Z]{0,6}(?![\w-])"
)
"""Capital letters and six digits or more: a number of something, whoever gave it."""

_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){2,7}(?:\s?[A-Z0-9]{1,4})?\b")
_CARD = re.compile(r"(?<![\w#])\d{4}([ .\-/])\d{4,6}\1\d{4,5}(?:\1\d{2,4})?(?!\d)")
_LONG_NUMBER = re.compile(r"(?<![\d#])\d(?:[\s_,-]?\d){12,29}")
"""Cards and tracking numbers, whatever digits stand beside them."""

_TRACKING_WORD = re.compile(
    r"(?P<word>\b(?:tracking|fedex|dhl|ups|usps|waybill|consignment|royal mail|sendungsnummer|"
    r"(?:num[eé]ro de )?suivi|(?:n[uú]mero de )?seguimiento|tracciamento|trackingcode)"
    r"(?:\s(?:number|no\.?|code|id|ref|reference|nr\.?)){0,2}(?:\s(?:is|was|ist|est|"
    r"es))?[\s:#(=]{0,4})"
    r"(?=[\w-]{0,40}\d)[A-Z0-9][A-Z0-9-]{7,39}\b",
    re.IGNORECASE,
)
_NUMBER = r"(?=[A-Z-]{0,8}\d)[A-Z0-9][A-Z0-9-]{2,31}"
_ORDER = re.compile(
    r"(?P<word>\b(?:orders?|bestellungs?|bestell(?:nummer|nr\.?)|auftrags?(?:nummer)?|commandes?|"
    r"pedidos?|"
    r"ordine|ordini|bestelling(?:snummer)?|ordernummer|ordrenummer|encomenda|beställning|"
    r"zam[oó]wieni[ea]|invoice|confirmation)"
    r"(?:[\s-](?:number|num|no\.?|n[º°o]\.?|nr\.?|nummer|numero|número|id|ref|reference|code)s?)?"
    r"(?:\s(?:is|was|are|ist|lautet|est|es|è))?[\s:#(=]{0,4})(?P<id>" + _NUMBER + r")\b"
    r"(?P<more>(?:(?:,\s?|\s(?:and|or|und|et|y|e)\s|\s&\s)#?" + _NUMBER + r"\b){0,9})",
    re.IGNORECASE,
)
_HASH_NUMBER = re.compile(r"#(?P<id>" + _NUMBER + r")\b", re.IGNORECASE)
_ORDER_CODE = re.compile(r"(?<![\w-])(?P<id>(?:PO|SO|INV|ORD)[-#/]?(?:\d{4}[-/])?\d{3,12})\b")
_COLOUR = re.compile(r"(?=\d{0,4}[a-f]\d{0,4}[a-f])[0-9a-f]{6}", re.IGNORECASE)
_PHONE = re.compile(
    r"(?<![A-Za-z0-9_#*])(?:\+\d{1,3}[\s./-]{0,3}|\(|"
    r"(?=0\d{2,5}\s?/))?(?:\d[\s().-]{0,3}/?\s?){6,14}\d"
    r"(?:\s?(?:x|ext\.?)\s?\d{1,6})?(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:19|20)\d\d-[01]\d-[0-3]\d(?!\d)")
_DAY = re.compile(
    r"[0-3]?\d([./-])[0-3]?\d\1(?:(?:19|20)\d\d|\d\d)(?!\d)|(?:19|"
    r"20)\d\d([./])[01]?\d\2[0-3]?\d(?!\d)"
)
_SPACES = re.compile(r"[\s().,/-]*")
_MILLISECONDS = re.compile(r"1[5-9]\d{11}")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")

_PART = (
    r"(?:de|del|della|delle|dei|da|das|dos|do|di|du|des|la|las|los|le|les|el|der|den|l['\u2019]|"
    r"d['\u2019])"
)
_CAPITAL = r"[A-ZÀ-ÖØ-Þ0-9][\w'\u2019.-]{0,30}"
_ADDRESSES = (
    re.compile(  # 12 main street
        r"\b\d{1,6}[A-Z]?,?\s(?:[A-Z][\w.'-]{0,30}\s){1,4}"
        r"(?:street|str|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|crescent|cres|highway|hwy|"
        r"terrace|"
        r"tce|parkway|pkwy)\b\.?(?:,?\s(?:apt|apartment|unit|suite|flat|\#)\.?\s?\w{1,6})?",
        re.IGNORECASE,
    ),
    re.compile(  # 8 Elm Close: names in capitals, because the last word is an ordinary one
        r"\b\d{1,6}[A-Za-z]?,?\s(?:[A-Z][\w.'-]{0,30}\s){1,3}"
        r"(?:Drive|Dr|Court|Ct|Place|Pl|Square|Sq|Way|Close|Grove|Gardens|Mews|Hill|Row|Walk|Park|"
        r"Parade|Pde|Circle|Cir|Trail|Loop|Quay|Rise|View|Green|Wharf)\b\.?"
        r"(?:,?\s(?:Apt|Apartment|Unit|Suite|Flat|\#)\.?\s?\w{1,6})?"
    ),
    re.compile(r"\b\d{1,5}[A-Za-z]?,?\s[A-Z][a-z]{2,20}way\b"),  # 118 Kingsway
    re.compile(  # Hauptstraße 12
        r"(?<![\w.'-])(?:[\w.'-]{2,30}(?:straße|strasse|str\.|weg|platz|allee|gasse|damm|ufer|straat|laan|"
        r"gracht|plein|"
        r"gatan|vägen|gränd|gata|veien))"
        r"\s\d{1,4}\s?[a-z]?\b(?:-(?:[IVX]{1,4}|\d{1,3})\b)?(?=[\s,.;)]|$)",
        re.IGNORECASE,
    ),
    re.compile(  # Am Alten Markt 3, 50667
        r"\b(?:Am|An der|Im|Auf dem|Zum|Zur)\s[A-ZÄÖÜ][\w'-]{2,30}(?:\s[A-ZÄÖÜ][\w'-]{2,30})?"
        r"\s\d{1,4}\s?[a-z]?(?=,?\s\d{5}\b)"
    ),
    re.compile(  # 12 bis, rue de la Paix
        r"\b\d{1,4}\s?(?:bis|ter|[a-zA-Z])?,?\s(?i:rue|boulevard|bd\.?|chemin|all[ée]e|impasse|"
        r"quai|avenue|cours|"
        r"place(?=\s(?:de|du|des)))\s(?:(?i:"
        + _PART
        + r")\s?){0,3}[\w'\u2019.-]{2,30}(?:\s"
        + _CAPITAL
        + r"){0,3}"
    ),
    re.compile(  # Calle Mayor, 5
        r"\b(?i:calle|c/|avda\.?|avenida|plaza|paseo|carrer|via|viale|piazza|corso|vicolo|largo|"
        r"rua|travessa|"
        r"pra[çc]a|ul\.|ulica|aleja|al\.)\s(?:(?i:"
        + _PART
        + r")\s?){0,3}"
        + _CAPITAL
        + r"(?:\s(?:(?:"
        + _PART
        + r")\s?){0,2}"
        + _CAPITAL
        + r"){0,3}?,?\s(?:n[º°.]?\s?)?\d{1,5}\s?[a-zA-Z]?\b"
    ),
    re.compile(
        r"\b(?:(?:P\.?\s?O\.?|GPO|Post Office)\s?Box|Postfach|Postbus|Locked Bag|"
        r"Apartado(?:\sde\sCorreos)?|"
        r"Casella Postale|Bo[iî]te Postale)\s\d(?:\s?\d){0,7}",
        re.IGNORECASE,
    ),
)
_POSTCODE = re.compile(
    r"\b[A-Z]{1,2}\d[A-Z\d]?\s\d[A-Z]{2}\b"  # GB
    r"|\b[A-Z]{2}\s\d{5}(?:-\d{4})?\b"  # US
    r"|\b[ABCEGHJ-NPRSTVXY]\d[A-Z]\s?\d[A-Z]\d\b"  # CA
    r"|\b(?:NSW|VIC|QLD|WA|SA|TAS|ACT|NT)\s\d{4}\b"  # AU
)


def _last_four(found: re.Match[str]) -> str:
    groups = found.groupdict()
    word = groups.get("word") or ("#" if found.group().startswith("#") else "")
    more = _NEXT_ORDER.sub(lambda other: MASK + _end(other.group()), groups.get("more") or "")
    return f"{word}{MASK}{_end(found['id'])}{more}"


def _hashed(found: re.Match[str]) -> str:
    return found.group() if _COLOUR.fullmatch(found["id"]) else _last_four(found)


def _end(number: str) -> str:
    return number[-4:] if len(number) > 4 else ""


_NEXT_ORDER = re.compile(_NUMBER, re.IGNORECASE)


def _long_number(found: re.Match[str]) -> str:
    text = found.group()
    date = _DATE.match(text)
    if date is not None:
        return date.group() + _LONG_NUMBER.sub(_long_number, text[date.end() :])
    return text if _MILLISECONDS.fullmatch(text) else MASK


def _phone(found: re.Match[str]) -> str:
    text = found.group()
    date = _DATE.match(text) or _DAY.match(text)
    if date is not None:
        between = _SPACES.match(text, date.end())
        after = between.end() if between else date.end()
        return text[:after] + _PHONE.sub(_phone, text[after:])
    if _IPV4.fullmatch(text) or _MILLISECONDS.fullmatch(text):
        return text
    digits = [c for c in re.split(r"x|ext", text, maxsplit=1)[0] if c.isdigit()]
    if not 7 <= len(digits) <= 15:
        return text
    return f"***-***-{''.join(digits[-4:])}"


PERSONAL: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (_TRACKING_URL, MASK),
    (_TRACKING, MASK),
    (_IBAN, MASK),
    (_MIXED, MASK),
    (_LONG_NUMBER, _long_number),
    (_CARD, MASK),
    (_TRACKING_WORD, rf"\g<word>{MASK}"),
    (_ORDER, _last_four),
    (_HASH_NUMBER, _hashed),
    (_ORDER_CODE, _last_four),
    *((address, MASK) for address in _ADDRESSES),
    (_POSTCODE, MASK),
    (_PHONE, _phone),
]
"""In this order: what is more certain comes first."""
