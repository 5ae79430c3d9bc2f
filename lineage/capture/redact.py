"""Mask secrets before they reach a file. docs/redaction.md is the contract; this is its only implementation.

A mask is visible and comparable: `***masked:<16 hex>***`, where the hex is a slow hash of what was there. Equal secrets
have equal masks, so recipes still compare right; a short secret costs its guesser one scrypt a try.

Everything here is pure and idempotent: what is masked once is masked no further.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

_SALT: Final = b"lineage redaction 1"
_MASK: Final = re.compile(r"\*\*\*masked:[0-9a-f]{16}\*\*\*")
_MASK_TEXT: Final = r"\*\*\*masked:[0-9a-f]{16}\*\*\*"


# --- masks ---


def mask_value(secret: str) -> str:
    """The mask that stands for `secret`; a mask, or an empty text, stands for itself.

    About 50 ms for a new value (scrypt, n=2**14, r=8, p=1), cached; a microsecond for long random ones, which nobody
    can guess however fast the hash.
    """
    if not secret or _MASK.fullmatch(secret):
        return secret
    return f"***masked:{_hash(secret)}***"


def is_masked(text: str) -> bool:
    """Whether there is a mask in the text."""
    return _MASK.search(text) is not None


@functools.lru_cache(maxsize=4096)
def _hash(secret: str) -> str:
    data = secret.encode("utf-8", "surrogatepass")
    # A list of thousands of signed URLs must not take minutes; forty random characters need no slow hash.
    if re.fullmatch(r"[A-Za-z0-9+/=_-]{40,}", secret) and len(set(secret)) >= 12 and len(re.findall(r"\d", secret)) > 5:
        return hashlib.blake2b(data, digest_size=8, key=_SALT).hexdigest()
    return hashlib.scrypt(data, salt=_SALT, n=2**14, r=8, p=1, dklen=8).hex()


# --- names that promise a secret ---

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET: Final = _words("""
    password passwords passwd passphrase passphrases passcode pwd secret secrets credential credentials creds
    apikey apikeys apitoken authtoken accesstoken refreshtoken accesskey secretkey privatekey clientsecret
    auth oauth authorization bearer dsn jwt cookie cookies otp htpasswd connstr
""")
"""One of these words decides, wherever it stands in a name, unless the name ends in what only speaks about it."""

_KEY_OWNERS: Final = _words("""
    api access secret private ssh encryption encrypt decryption signing sign account auth master service license
    session client deploy shared subscription wandb openai anthropic hf aws azure gcp ssl tls gpg pgp admin webhook
    app application consumer
""")
_PASS_OWNERS: Final = _words("""
    db database user smtp mail email ftp proxy redis mysql postgres pg admin root login http https basic sudo ssh
    key mongo rabbitmq ldap
""")
_PLAIN_TOKENS: Final = _words("""
    bos eos pad unk mask cls sep special image audio video start end stop begin prefix suffix middle think thinking
    per max min num n total first last next prev previous current each every additional new extra class register
    query target source src tgt input output decoder encoder forced sentence separator blank null newline space
    word sub subword vision speech text code fim eot eom sot pool pooling by added latent single multi cost
    assistant tool chunk context document seen train training eval ignore placeholder
""")
"""Before `token` these words speak of language, not of access. Any other `<word>_token` is taken for a secret."""

_TOKEN_OWNERS: Final = _words("access auth api refresh bearer id csrf oauth secret hf hub github gitlab slack bot")
"""Before the plural `tokens` only these make a secret: `num_tokens`, `total_tokens` and their like are counts."""

_ABOUT: Final = _words("""
    path paths file files filename dir folder env var variable name names type types kind mode method scheme length
    len size count min max required enabled enable disabled policy ttl expiry expires expiration timeout header
    prefix suffix format version algorithm algo backend provider manager store ids index ratio weight prob url uri
    endpoint host port user username dim per step steps budget limit rate loss dropout mask masking
""")
"""A name that ends so speaks about a secret without being one: `password_file`, `token_type`, `auth_method`."""

_QUERY: Final = _words("""
    sig signature key code sas awsaccesskeyid x-amz-signature x-amz-credential x-amz-security-token
    x-goog-signature x-goog-credential googleaccessid
""")
"""Query parameters that are secret beside those whose names say so."""


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret (docs/redaction.md, "Names")."""
    words = [word.lower() for word in _WORD.findall(_MASK.sub(" ", name))]
    return any(_is_secret_at(words, place) for place in range(len(words)))


def _is_secret_at(words: Sequence[str], place: int) -> bool:
    word, before = words[place], words[place - 1] if place else ""
    after = [other for other in words[place + 1 :] if not other.isdigit()]
    if after and after[-1] in _ABOUT:
        return False
    if word in _SECRET:
        return True
    if word == "key":
        return before in _KEY_OWNERS
    if word == "keys":
        return before in {"api", "access", "secret", "private", "ssh"}
    if word == "pass":
        return not after and (len(words) == 1 or before in _PASS_OWNERS)
    if word == "token":
        # `token_id`, `token_embedding`: a word that goes on after `token` makes it language, unless access comes first.
        if before in _TOKEN_OWNERS:
            return True
        return not after and before not in _PLAIN_TOKENS and not before.isdigit()
    return word == "tokens" and not after and before in _TOKEN_OWNERS


def _is_weak_name(name: str) -> bool:
    """Whether only `token`, `auth` or the like make the name secret: then a bare number is a setting, not a secret."""
    words = {word.lower() for word in _WORD.findall(name)}
    return not words & (_SECRET - {"auth", "oauth", "authorization", "bearer", "cookie", "cookies"}) and not (
        words & {"key", "keys", "pass"}
    )


# --- values that are secrets wherever they stand ---

_EDGE: Final = r"(?:(?<![A-Za-z0-9_])|(?<=%[0-9A-Fa-f]{2}))"
_PEM: Final = (
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.{0,32768}?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\:,-]*)"
)
_KNOWN: Final[tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]] = tuple(
    (tuple(marks.split()), re.compile(pattern, re.DOTALL))
    for marks, pattern in (
        ("-----BEGIN", _PEM),
        ("AKIA ASIA ABIA ACCA", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
        ("ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{20,}"),
        ("github_pat_", r"github_pat_[A-Za-z0-9_]{20,}"),
        ("glpat- glptt- glrt- gldt- glcbt- glft-", r"gl(?:pat|ptt|rt|dt|cbt|ft)-[A-Za-z0-9_-]{16,}"),
        ("_live_ _test_", _EDGE + r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}"),
        # `sk-learn-...` is no key: a digit has to be in it.
        ("sk-", _EDGE + r"sk-(?=[A-Za-z_-]{0,99}\d)[A-Za-z0-9_-]{20,}"),
        ("hf_ api_org_ gsk_ r8_ npm_", _EDGE + r"(?:hf|api_org|gsk|r8|npm)_[A-Za-z0-9]{20,}"),
        ("wandb_v", _EDGE + r"wandb_v\d_[A-Za-z0-9_]{20,}"),
        ("xai- pplx- nvapi-", _EDGE + r"(?:xai|pplx|nvapi)-[A-Za-z0-9_-]{20,}"),
        ("xox", r"xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}"),
        ("xapp-", r"xapp-[A-Za-z0-9-]{10,}"),
        ("AIza", r"AIza[A-Za-z0-9_-]{35}"),
        ("ya29.", _EDGE + r"ya29\.[A-Za-z0-9_-]{20,}"),
        ("SG.", _EDGE + r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
        ("pypi-AgE", _EDGE + r"pypi-AgE[A-Za-z0-9_-]{50,}"),
        ("dop_v1_", _EDGE + r"dop_v1_[a-f0-9]{64}"),
        ("dapi", _EDGE + r"dapi[a-f0-9]{32}"),
        ("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
        ("eyJ", _EDGE + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}"),
    )
)
"""What a text must hold for the pattern to be worth trying, which is ten times as quick; and the pattern."""
_BEARER: Final = re.compile(r"(?i:(?<![A-Za-z0-9_])(bearer)(\s+|%20|\+))([A-Za-z0-9._~+/=-]{8,})")
_BASIC: Final = re.compile(r"((?<![A-Za-z0-9_])[Bb]asic\s+)((?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{8,}={0,2})")
_WEBHOOK: Final = re.compile(
    r"(https://(?:hooks\.slack\.com/(?:services|workflows|triggers)|(?:[a-z]+\.)?discord(?:app)?\.com/api/webhooks)/)"
    r"([^\s\"'<>?#]+)"
)
_WANDB_KEY: Final = re.compile(r"(?<![0-9A-Za-z])(?:local-)?[0-9a-f]{40}(?![0-9A-Za-z])")
_WANDB_PLAIN: Final = _words("commit sha sha1 revision rev hash digest")

# --- secrets inside a longer text ---

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://")
_URL_END: Final = re.compile(r"[\s\"'<>`]|[,;|]\Z")
_SSH: Final = _words("ssh git+ssh ssh+git svn+ssh sftp scp rsync")
_QUERY_PAIR: Final = re.compile(r"([?&#;])([A-Za-z0-9_.\[\]%~-]+)=((?:" + _MASK_TEXT + r"|[^&#\s\"'<>])+)")
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,127}"  # bounded, so that a megabyte of letters costs no square
_WHOLE: Final = re.compile(rf"\A(\s*[-+~/]*)({_NAME})(\s*=\s*|\s*:\s+|:)(.*)\Z", re.DOTALL)
_LINE: Final = re.compile(rf"(?m)^([ \t]*(?:-[ \t]+|export[ \t]+)?)({_NAME})([ \t]*[=:][ \t]+)(\S[^\r\n]*)$")
_IN_QUOTES: Final = r"""(?:"((?:[^"\\]|\\.)+)"|'((?:[^'\\]|\\.)+)')"""
_QUOTED_NAME: Final = re.compile(rf"""(["'])({_NAME})\1\s*[=:]\s*{_IN_QUOTES}""", re.DOTALL)
_QUOTED: Final = re.compile(rf"(?<![A-Za-z0-9_.-])({_NAME})\s*[=:]\s*{_IN_QUOTES}", re.DOTALL)
_PAIR: Final = re.compile(rf"""(?<![A-Za-z0-9_.-])-{{0,2}}({_NAME})(=)((?:{_MASK_TEXT}|[^\s"'&;,<>])+)""")
_INLINE_FLAG: Final = re.compile(rf"""(?<!\S)(-{{1,2}})({_NAME})(\s+)((?:"[^"]*"|'[^']*'|[^\s"'-]\S*))""")
_LISTED_FLAG: Final = re.compile(rf"""(["'])--?({_NAME})\1,\s*{_IN_QUOTES}""", re.DOTALL)
_NO_SECRET: Final = re.compile(
    r"(?i:none|null|true|false|yes|no|on|off|\?\?\?)|\$\{[^}]*\}|\$[A-Za-z_][A-Za-z0-9_]*|\*{3,}|<[A-Za-z_ -]*>"
)
"""Values that say that there is none, or where it comes from."""


def _is_plain(value: str) -> bool:
    return not value or _NO_SECRET.fullmatch(value.strip()) is not None


def redact_url(url: str) -> str:
    """A URL or git remote without its credentials: userinfo and secret query parameters masked, the rest as it was.

    The user of an ssh URL (`ssh://git@host`, `git@host:path`) is no credential and stays, unless a password follows.
    """
    return _queries(_userinfo(url))


def _userinfo(text: str) -> str:
    out, at = [], 0
    schemes = list(_SCHEME.finditer(text))
    # A URL ends where the next begins, which also keeps this linear.
    for scheme, following in zip_longest(schemes, schemes[1:]):
        limit = following.start() if following else len(text)
        end_match = _URL_END.search(text, scheme.end(), limit)
        end = end_match.start() if end_match else limit
        rest = text[scheme.end() : end]
        info = _find_userinfo(rest, scheme.group()[:-3].lower())
        if info is None:
            continue
        masked = mask_value(info)
        if masked == info:
            continue
        out += [text[at : scheme.end()], masked]
        at = scheme.end() + len(info)
    return "".join([*out, text[at:]])


def _find_userinfo(rest: str, scheme: str) -> str | None:
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0]
    if "@" in authority:
        info = authority.rpartition("@")[0]
    elif "@" in rest and not _is_host(authority):
        # `user:pa/ss@host`: a reserved character that should have been escaped ends no password.
        info = rest.rpartition("@")[0]
    else:
        return None
    if not info or (scheme in _SSH and ":" not in info and len(info) <= 32):
        return None
    return info


def _is_host(authority: str) -> bool:
    """Whether this can be a host with a port; `user:secret` cannot."""
    return re.fullmatch(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(:\d{0,5})?", authority) is not None


def _queries(text: str) -> str:
    if "=" not in text:
        return text

    def mask(found: re.Match[str]) -> str:
        mark, name, value = found.groups()
        if (name.lower() in _QUERY or is_secret_name(name)) and not _is_plain(value):
            return f"{mark}{name}={mask_value(value)}"
        return found.group()

    return _QUERY_PAIR.sub(mask, text) if "://" in text or text.startswith(("/", "?")) else text


def _named(pattern: re.Pattern[str], text: str, name_at: int, value_at: Sequence[int]) -> str:
    """`text` with the value of each match masked whose name promises a secret."""
    out, at = [], 0
    for found in pattern.finditer(text):
        name, group = found[name_at], next((n for n in value_at if found[n] is not None), 0)
        value = found[group]
        if not group or _is_plain(value) or not is_secret_name(name):
            continue
        out += [text[at : found.start(group)], mask_value(value)]
        at = found.end(group)
    return "".join([*out, text[at:]])


def _known(text: str, mask: Callable[[str], str] = mask_value) -> str:
    for marks, pattern in _KNOWN:
        if any(mark in text for mark in marks):
            text = pattern.sub(lambda found: mask(found.group()), text)
    if "://" in text:
        text = _WEBHOOK.sub(lambda found: f"{found[1]}{mask(found[2])}", text)
    text = _BEARER.sub(lambda found: f"{found[1]}{found[2]}{mask(found[3])}", text)
    return _BASIC.sub(lambda found: f"{found[1]}{mask(found[2])}", text)


def _flags(text: str) -> str:
    def mask(found: re.Match[str]) -> str:
        dashes, name, space, value = found.groups()
        if is_secret_name(name) and not _is_plain(value):
            return f"{dashes}{name}{space}{mask_value(value)}"
        return found.group()

    return _INLINE_FLAG.sub(mask, text)


_RULES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: _named(_WHOLE, text, 2, (4,)),
    lambda text: _named(_LINE, text, 2, (4,)),
    lambda text: _named(_QUOTED_NAME, text, 2, (3, 4)),
    lambda text: _named(_QUOTED, text, 1, (2, 3)),
    _userinfo,
    _queries,
    lambda text: _named(_PAIR, text, 1, (3,)),
    _flags,
    lambda text: _named(_LISTED_FLAG, text, 2, (3, 4)) if "'-" in text or '"-' in text else text,
    _known,
)


def redact_text(text: str) -> str:
    """A text of any kind with the secrets in it masked: assignments, flags, URLs, headers and known kinds of token."""
    for _ in range(8):  # to a fixed point, since what one rule masks may be what another was waiting for
        before = text
        for rule in _RULES:
            text = rule(text)
        if text == before:
            break
    return text


def redact_patch(text: str) -> str:
    """A diff with URL credentials and known kinds of token masked, line for line.

    It still applies wherever no masked line is context or is taken away. Names promise nothing in source code
    (`password = input()`), so they are not looked at; binary parts are left alone.
    """
    parts = re.split(r"(?m)^(?=diff --git )", text)
    return "".join(part if "\nGIT binary patch\n" in part else _redact_hunks(part) for part in parts)


def _redact_hunks(text: str) -> str:
    if "://" in text:
        text = "\n".join(_queries(_userinfo(line)) if "://" in line else line for line in text.split("\n"))
    return _known(text, _mask_lines)


def _mask_lines(secret: str) -> str:
    """A mask on every line of a secret, behind the `+`, `-` or space that a diff puts there."""
    mask = mask_value(secret)
    first, *others = secret.split("\n")
    return "\n".join([mask if first else "", *(line[:1] + mask if line else "" for line in others)])


# --- command lines ---

_FLAG: Final = re.compile(r"--?([A-Za-z][A-Za-z0-9_.-]*)")


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line with its secrets masked; as many items as before.

    `--api-key X`, `--api-key=X` and `api_key=X` by name; `-u user:password`; then every item as any text. `-p` is not
    taken for a password: in training code it is a port, a path or a precision.
    """
    out: list[str] = []
    expects = False
    takes_login = False
    for item in argv:
        is_flag = _FLAG.fullmatch(item)
        if (expects and not item.startswith("--") and not (is_flag and len(item) <= 3) and not _is_plain(item)) or (
            takes_login and ":" in item and not is_masked(item)
        ):
            out.append(mask_value(item))
        else:
            out.append(redact_text(item))
        expects = is_flag is not None and is_secret_name(is_flag[1])
        takes_login = item in {"-u", "--user", "-U", "--proxy-user"}
    return out


# --- trees ---


@dataclass(frozen=True)
class Redacted:
    """A tree with its secrets masked, and the dotted paths of the leaves (or keys) that hold a mask, sorted."""

    value: Any
    masked: list[str]


def redact_tree(value: Any) -> Redacted:
    """A tree of plain values (dict, list, tuple, str, numbers, bytes, None) with its secrets masked.

    By the name of the key that leads to a leaf, at any depth below it; by what the leaf is; and in lists that look
    like a command line, by the flag before it. A list of more than eight under a secret name becomes one mask; all
    other containers keep their type and length.
    """
    masked: set[str] = set()
    out = _tree(value, "", None, is_weak=False, in_wandb=False, masked=masked)
    return Redacted(out, sorted(masked))


def _tree(value: Any, path: str, name: str | None, *, is_weak: bool, in_wandb: bool, masked: set[str]) -> Any:
    """`name` is the secret name that leads here, None when there is none."""

    def note(leaf: str) -> str:
        if is_masked(leaf):
            masked.add(path)
        return leaf

    if isinstance(value, dict):
        return _mapping(value, path, name, is_weak=is_weak, in_wandb=in_wandb, masked=masked)
    if isinstance(value, list | tuple):
        if name is not None and len(value) > 8 and not (is_weak and all(type(item) in {int, float} for item in value)):
            return note(mask_value(repr(value)))  # one slow hash instead of one for each item
        items: Sequence[Any] = value
        if name is None and _is_command_line(value):
            items = redact_argv(value)
        out = [
            _tree(item, f"{path}[{place}]", name, is_weak=is_weak, in_wandb=in_wandb, masked=masked)
            for place, item in enumerate(items)
        ]
        return tuple(out) if isinstance(value, tuple) else out
    if isinstance(value, str):
        if name is not None:
            return note(value if _is_plain(value) else mask_value(value))
        text = redact_text(value)
        if in_wandb:
            text = _WANDB_KEY.sub(lambda found: mask_value(found.group()), text)
        return note(text)
    if isinstance(value, bytes):
        if name is not None and value:
            return note(mask_value(value.decode("latin-1")))
        text = value.decode("latin-1")
        found = redact_text(text)
        return value if found == text else note(found)
    if name is not None and not is_weak and isinstance(value, int | float) and not isinstance(value, bool):
        return note(mask_value(repr(value)))
    return value


def _mapping(
    value: dict[Any, Any], path: str, name: str | None, *, is_weak: bool, in_wandb: bool, masked: set[str]
) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for key, child, said in _entries(value):
        new_key = redact_text(key) if isinstance(key, str) else key
        below = f"{path}.{new_key}" if path else str(new_key)
        if new_key != key or (isinstance(key, str) and is_masked(key)):
            masked.add(below)
        key_name = redact_text(said) if said is not None else new_key
        child_name, weak = name, is_weak
        if isinstance(key_name, str) and is_secret_name(key_name):
            child_name, weak = key_name, (name is None or is_weak) and _is_weak_name(key_name)
        words = {word.lower() for word in _WORD.findall(key_name)} if isinstance(key_name, str) else set()
        wandb = (in_wandb or "wandb" in words) and not words & _WANDB_PLAIN
        out[new_key] = _tree(child, below, child_name, is_weak=weak, in_wandb=wandb, masked=masked)
    return out


def _entries(value: dict[Any, Any]) -> Iterator[tuple[Any, Any, str | None]]:
    """Key, child, and the name that another entry gives the child: {"name": "API_KEY", "value": ...}."""
    said = next((value[key] for key in ("name", "key", "variable") if isinstance(value.get(key), str)), None)
    for key, child in value.items():
        yield key, child, said if said is not None and key == "value" else None


def _is_command_line(value: Sequence[Any]) -> bool:
    return all(isinstance(item, str) for item in value) and any(item.startswith("-") for item in value)
