"""Which exported symbol answers for (base name, version, per-thread flag).

cudaTypedefs.h names each ABI of a function `PFN_cuMemAlloc_v3020`; cuda.h exports the same ABI as
`cuMemAlloc_v2`. No header joins the two. Both count upwards, so the n-th version of a name belongs
to its n-th exported spelling, and the signatures must agree: a mismatch stops the import.
"""

import re

PTHREAD_FLAG = 2
SPELLING = re.compile(r"(?P<base>\w+?)(?:_v(?P<number>\d+))?(?P<stream>_ptsz|_ptds)?$")
TYPEDEF = re.compile(r"PFN_(?P<base>\w+)_v(?P<version>\d+)(?P<stream>_ptsz|_ptds)?$")


class Mismatch(Exception):
    pass


def _resolver(types):
    """Spells a type with every typedef of a scalar or pointer replaced by what it stands for."""
    names = {t["name"]: t["type"] for t in types if t["kind"] == "typedef"}

    def resolve(text):
        while True:
            words = re.findall(r"\w+", text)
            known = next((w for w in words if w in names and "(" not in names[w]), None)
            if known is None:
                return re.sub(r"\s+", "", text.replace("unsigned int", "unsigned"))
            text = re.sub(rf"\b{known}\b", names[known], text)
    return resolve


def match_versions(reader, typedefs):
    resolve = _resolver(reader.types)
    symbols, versions = {}, {}
    for name, entry in reader.functions.items():
        m = SPELLING.match(name)
        key = (m["base"], bool(m["stream"]))
        signature = tuple(resolve(p["type"]) for p in entry["params"])
        symbols.setdefault(key, []).append((int(m["number"] or 1), name, signature))
    for name, (_, params) in typedefs.items():
        if m := TYPEDEF.match(name):
            signature = tuple(resolve(p["type"]) for p in params)
            versions.setdefault((m["base"], bool(m["stream"])), []).append(
                (int(m["version"]), name, signature))
    return [row for key in sorted(versions) for row in _match(key, versions[key], symbols)]


def _match(key, versions, symbols):
    base, per_thread = key
    candidates = sorted(symbols.get(key, []))
    versions = sorted(versions)
    if len(candidates) != len(versions):
        raise Mismatch(f"{base}: versions {[v[1] for v in versions]}, "
                       f"symbols {[c[1] for c in candidates]}")
    for (version, typedef, wanted), (_, symbol, offered) in zip(versions, candidates):
        if wanted != offered:
            raise Mismatch(f"{typedef} {wanted} is not {symbol} {offered}")
        yield [base, version, PTHREAD_FLAG if per_thread else 0, symbol]
